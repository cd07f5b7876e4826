// ---- 6. the bytes of fine-tuning a model, from its config.json, by a 64-bit program in a worker of its own ----
const llama = (type, layers, width, inner, heads, shared, vocabulary, context) => ({ model_type: type, num_hidden_layers: layers,
  hidden_size: width, intermediate_size: inner, num_attention_heads: heads, num_key_value_heads: shared, vocab_size: vocabulary,
  max_position_embeddings: context, tie_word_embeddings: true, rms_norm_eps: 1e-5, hidden_act: 'silu' });
const CONFIGS = {
  'SmolLM2 135M': llama('llama', 30, 576, 1536, 9, 3, 49152, 8192),
  'Qwen2.5 0.5B': llama('qwen2', 24, 896, 4864, 14, 2, 151936, 32768),
  'Llama 3.2 1B': llama('llama', 16, 2048, 8192, 32, 8, 128256, 131072),
  'Llama 3.1 8B': { ...llama('llama', 32, 4096, 14336, 32, 8, 128256, 131072), tie_word_embeddings: false },
};
const STORAGES = [['f32', 0], ['int8', 3], ['int4', 4]], LENGTHS = [512, 2048, 8192];
for (const name of Object.keys(CONFIGS)) $('config-of').add(new Option(name));
let fitting; // the worker whose table is being filled

// Starts a worker and returns a function that asks it: ask(call, of, text) gives its answer.
function fitter() {
  if (fitting) fitting.terminate();
  const own = fitting = new Worker(inWorker);
  own.onerror = broken;
  own.postMessage({ program: programOf('fits-engine') });
  return (call, of, text) => new Promise(done => {
    own.onmessage = ({ data: { answer } }) => done(answer);
    own.postMessage({ call, of, text });
  });
}
const megabytes = n => Math.ceil(n / 1e6).toLocaleString('en-US');

// Adds a row to the table and returns its cell k.
function fitsRow(titles, cells, kind) {
  const row = $('fits-table').insertRow();
  titles.forEach(text => {
    const th = row.appendChild(document.createElement('th'));
    th.scope = kind;
    th.textContent = text;
  });
  return Array.from({ length: cells }, () => row.insertCell());
}

// Returns the config.json of the chosen file or model.
const fitsText = () => $('config').files.length ? $('config').files[0].text() : JSON.stringify(CONFIGS[$('config-of').value]);

async function countFits() {
  if (!WebAssembly.validate(programOf('fits-engine'))) {
    say('fits-says', 'This browser has no 64-bit WebAssembly, which counting more than 4 GB needs. Take a newer Chrome, Edge or '
      + 'Firefox, or run: finetune --will-it-fit config.json', true);
    return;
  }
  const ask = fitter(), own = fitting, budget = Math.max(0, Number($('fits-budget').value) || 0) * 1e6;
  const text = new TextEncoder().encode(await fitsText());
  $('fits-table').replaceChildren();
  const model = await ask('read', [], text);
  if (model.error) {
    say('fits-says', `${model.error}.`, true);
    return;
  }
  const lengths = LENGTHS.filter((n, i) => i === 0 || n <= model.context).map(n => Math.min(n, model.context));
  fitsRow(['method', 'matrices', ...lengths.map(n => `${n.toLocaleString('en-US')} tokens`)], 0, 'col');
  const says = `${model.type}, ${megabytes(model.parameters)} million parameters. `;
  say('fits-says', `${says}The planner counts ..`);
  for (const [method, [name, freezes]] of model.methods.entries())
    for (const [storage, kind] of freezes ? STORAGES : STORAGES.slice(0, 1)) {
      const cells = fitsRow([name, storage], lengths.length, 'row');
      let why; // why this model cannot be trained so, with any storage
      for (const [k, cell] of cells.entries()) {
        const fits = await ask('fits', [method, kind, lengths[k], budget]);
        if (own !== fitting) return;
        why = fits.error;
        if (why) break;
        cell.textContent = !budget ? `${megabytes(fits.least)} to ${megabytes(fits.most)} MB`
          : fits.fits ? `yes, +${Math.round(100 * fits.overhead)} % time` : `no: ${megabytes(fits.least)} MB`;
      }
      if (!why) continue;
      cells.slice(1).forEach(c => c.remove());
      Object.assign(cells[0], { colSpan: lengths.length, className: 'why', textContent: why });
      break;
    }
  say('fits-says', says + (budget ? 'Yes: and how much longer a step takes by recomputing. No: the least, by recomputing, that it needs.'
    : 'The least, by recomputing, to what a step takes that recomputes nothing.'));
}
$('fits').onclick = countFits;
