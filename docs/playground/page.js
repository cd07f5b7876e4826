'use strict';
// Models and their sizes in the order of engine.c, with least, greatest and first value; meanings of result names.
const MODELS = {
  gpt: { number: 2, title: 'GPT', sizes: [['blocks', 1, 24, 4], ['heads', 1, 16, 4], ['width', 8, 1024, 64],
    ['tokens', 2, 1024, 64], ['vocabulary', 2, 50257, 256]], rows: 4, fits: s => s.width % s.heads === 0
    || 'width must be a multiple of heads', name: 'norm2 1', means: 'the second norm of block 1. (A norm scales the numbers of '
    + 'a token to one size; q, k and v are what attention compares and takes, rotary turns them by their place.)' },
  chain: { number: 0, title: 'chain of layers', sizes: [['layers', 1, 100, 24], ['width', 1, 1024, 32]], rows: 1024,
    name: 'tanh 3', means: 'what layer 3 computed, bent by tanh' },
  mlp: { number: 1, title: 'MLP', sizes: [['inputs', 1, 4096, 64], ['layers', 1, 60, 8], ['width', 1, 1024, 64],
    ['classes', 2, 1000, 10]], rows: 512, name: 'hidden 2', means: 'the sums of hidden layer 2, before tanh 2 bends them' },
  translator: { number: 3, title: 'encoder-decoder', sizes: [['blocks', 1, 8, 2], ['heads', 1, 16, 4],
    ['width', 8, 512, 64], ['tokens', 2, 256, 32], ['vocabulary', 2, 50257, 256]], rows: 8, fits: s =>
    s.width % s.heads === 0 || 'width must be a multiple of heads', name: 'cross q 1', means: 'what block 1 of the decoder asks '
    + 'the encoder for (its queries)' },
  unet: { number: 4, title: 'U-Net', sizes: [['levels', 1, 4, 3], ['channels', 1, 64, 8], ['image', 8, 256, 32],
    ['convolutions', 1, 12, 2]], rows: 2, fits: s => s.image % 2 ** s.levels === 0
    || `image must be a multiple of ${2 ** s.levels}`, name: 'both 0', means: 'what level 0 keeps from the way down, beside what '
    + 'comes up to it' },
};
// Presets that can save much memory; lesson 3 of the course links to them.
const PRESETS = {
  'deep-chain': { model: 'chain', title: 'deep chain (lesson 3)', sizes: { layers: 36 } },
  'deep-gpt': { model: 'gpt', title: 'deep GPT (lesson 3)', sizes: { blocks: 8 }, rows: 8 },
  'large-unet': { model: 'unet', title: 'U-Net, large images (lesson 3)', sizes: { image: 128, convolutions: 4 } },
};
// Returns the choices of a preset, or the first ones of a model.
function preset(key) {
  const own = PRESETS[key] || { model: key, sizes: {} }, m = MODELS[own.model];
  const sizes = Object.fromEntries(m.sizes.map(([n, , , usual]) => [n, usual]));
  return { model: own.model, rows: own.rows || m.rows, sizes: { ...sizes, ...own.sizes } };
}
const isPreset = key => ['model', 'rows', 'sizes'].every(k => JSON.stringify(preset(key)[k]) === JSON.stringify(state[k]));
const MODES = { optimal: 5, 'store-all': 1, sqrt: 4, segments: 3, 'memory-poor': 2 };
const FORWARD = 0, BACKWARD = 1, UPDATE = 2, BEGIN = 7;
const $ = id => document.getElementById(id);
const state = { model: 'gpt', sizes: {}, rows: 0, budget: 0, mode: 'optimal', at: 0 };
let frontier = null, plan = null, holds = null, playing = 0;

// ---- the engine in a worker: one request at a time; only the newest request of a kind waits ----
const programOf = id => Uint8Array.from(atob($(id).textContent.trim()), c => c.charCodeAt(0));
const program = programOf('engine');
const inWorker = URL.createObjectURL(new Blob([$('worker').textContent], { type: 'text/javascript' }));
let worker, asked, since = 0;
const waiting = new Map();
function next() {
  const [call] = waiting.keys();
  if (asked || !call) return;
  asked = waiting.get(call);
  waiting.delete(call);
  since = performance.now();
  worker.postMessage({ call, of: asked.of });
}
// Restarts the worker and drops its requests.
function engage() {
  if (worker) worker.terminate();
  worker = new Worker(inWorker);
  worker.postMessage({ program });
  waiting.clear();
  asked = null;
  worker.onerror = broken;
  worker.onmessage = ({ data }) => {
    const done = asked.done;
    asked = null;
    done(data.answer);
    next();
  };
}
setInterval(() => {
  const seconds = asked ? (performance.now() - since) / 1000 : 0;
  $('busy').hidden = seconds < 0.3;
  $('busy-for').textContent = seconds < 2 ? '' : `${seconds.toFixed(0)} s; a smaller network takes less`;
}, 100);
function ask(call, of, done) {
  waiting.set(call, { of, done });
  next();
}

// ---- words ----
const tooLarge = error => /memory|can address/.test(error) ? 'Too large for this page: its memory ends at 2 GB. Natively there is no such limit.' : error;
const figure = n => n.toLocaleString('en'); // 1,234,567
function bytes(n) {
  for (const [unit, size] of [['GB', 1e9], ['MB', 1e6], ['kB', 1e3]])
    if (n >= 0.9995 * size) return `${(n / size).toPrecision(3)}\u00a0${unit}`;
  return count(n, 'byte');
}
// Formats n bytes, unrounded if n and m differ but round to the same text.
const apart = (n, m) => n !== m && bytes(n) === bytes(m) ? count(n, 'byte') : bytes(n);
const count = (n, what) => `${figure(n)} ${what}${n === 1 ? '' : 's'}`;
const are = (n, what) => `${count(n, what)} ${n === 1 ? 'is' : 'are'}`;
const percent = x => x > 0 && x < 0.0005 ? 'less than 0.1\u00a0%' : `${(100 * x).toFixed(x && x < 0.0995 ? 1 : 0)}\u00a0%`;
// Returns a round distance between marks, with at most n marks in a span.
function spacing(wide, n) {
  const power = 10 ** Math.floor(Math.log10(wide / n));
  return [1, 2, 5, 10].map(k => k * power).find(d => wide / d <= n);
}
const broken = e => say('model-says', `The engine of this page stopped: ${e.message}. Load the page again.`, true);
function say(id, text, wrong) {
  $(id).textContent = text;
  $(id).classList.toggle('error', Boolean(wrong));
}
function svg(tag, attributes, text) {
  const e = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  if (text !== undefined) e.textContent = text;
  return e;
}
// Returns the width of a drawing in pixels, so that its text keeps its size.
function across(box, height) {
  const wide = Math.max(240, Math.round(box.clientWidth));
  box.setAttribute('viewBox', `0 0 ${wide} ${height}`);
  return wide;
}
const colors = new Map();
function color(name) {
  if (!colors.has(name)) colors.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return colors.get(name);
}

// ---- the address: all of the state, so that a lesson is a link; written when idle, because browsers limit the rate ----
let later = 0;
function toAddress() {
  clearTimeout(later);
  later = setTimeout(writeAddress, 200);
}
function writeAddress() {
  const p = new URLSearchParams(location.hash.slice(1));
  p.delete('see');
  for (const { sizes } of Object.values(MODELS)) for (const [name] of sizes) p.delete(name);
  for (const [name, n] of Object.entries({ model: state.model, ...state.sizes, rows: state.rows, mode: state.mode,
    budget: state.budget, at: state.at }))
    p.set(name, n);
  trainingToAddress(p);
  history.replaceState(null, '', `#${p}`);
}
// Returns an integer of the address, or `usual` if it is absent or outside its limits.
function whole(p, name, least, most, usual) {
  const n = Math.round(Number(p.get(name)));
  return p.has(name) && n >= least && n <= most ? n : usual;
}
function fromAddress() {
  const p = new URLSearchParams(location.hash.slice(1));
  state.model = Object.hasOwn(MODELS, p.get('model')) ? p.get('model') : 'gpt';
  const m = MODELS[state.model];
  state.sizes = Object.fromEntries(m.sizes.map(([n, least, most, usual]) => [n, whole(p, n, least, most, usual)]));
  state.rows = whole(p, 'rows', 1, 65536, m.rows);
  state.mode = Object.hasOwn(MODES, p.get('mode')) ? p.get('mode') : 'optimal';
  state.budget = whole(p, 'budget', 0, 4e9, 0);
  state.at = whole(p, 'at', 0, 1e6, 0);
  state.see = ['budget', 'step', 'train', 'audit', 'fits'].includes(p.get('see')) ? p.get('see') : '';
}
// A link may name a section, which is shown when its plan is ready.
function showPart() {
  if (state.see) $(`h-${state.see}`).scrollIntoView();
  state.see = '';
}

// ---- 1. the network ----
function field(form, title, control, kind) {
  const label = document.createElement('label');
  label.className = kind;
  label.append(title, control);
  form.append(label);
}
function showModel() {
  const m = MODELS[state.model], form = $('model');
  form.replaceChildren();
  const select = document.createElement('select');
  const now = Object.keys(PRESETS).find(isPreset) || state.model;
  for (const [key, { title }] of Object.entries({ ...MODELS, ...PRESETS })) select.add(new Option(title, key, false, key === now));
  select.id = 'preset';
  select.onchange = () => {
    writeAddress();
    history.pushState(null, '', location.href); // so that Back returns to the previous network
    Object.assign(state, preset(select.value), { budget: 0, at: 0 });
    showModel();
    $('preset').focus();
    build();
  };
  field(form, 'Preset', select, '');
  const number = (name, least, most, value, set) => {
    const input = Object.assign(document.createElement('input'), { type: 'number', min: least, max: most, value });
    input.name = name;
    input.onchange = () => {
      const n = Math.round(Number(input.value));
      input.value = Math.min(Math.max(n || least, least), most);
      set(Number(input.value));
      state.budget = state.at = 0;
      $('preset').value = Object.keys(PRESETS).find(isPreset) || state.model;
      build();
    };
    field(form, name, input, 'size');
  };
  for (const [name, least, most] of m.sizes) number(name, least, most, state.sizes[name], n => { state.sizes[name] = n; });
  number('examples a step', 1, 65536, state.rows, n => { state.rows = n; });
  tellWords('model-words', [...m.sizes.map(([n]) => [n]), ['examples a step', 'examples'],
    [`names such as ${m.name}`, 'names', `Each result has the name of its layer and a number: ${m.name} is ${m.means}.`]]);
}
$('model').onsubmit = e => e.preventDefault();

function build() {
  const m = MODELS[state.model], fits = m.fits ? m.fits(state.sizes) : true;
  frontier = plan = null;
  if (asked || !worker) engage();
  for (const id of ['budget', 'bytes', 'mode', 'tour-begin']) $(id).disabled = true;
  say('says', '');
  say('method-says', '');
  $('frontier').replaceChildren();
  drawStep();
  if (fits !== true) {
    say('model-says', `${fits}.`, true);
    return;
  }
  const five = m.sizes.map(([n]) => state.sizes[n]).concat([0, 0, 0, 0, 0]).slice(0, 5);
  say('model-says', 'Looking at all budgets ...');
  ask('model', [m.number, ...five, state.rows], answer => {
    if (answer.error) say('model-says', tooLarge(answer.error), true);
    else {
      nodes = answer.nodes;
      ask('frontier', [], gotFrontier);
    }
  });
}

// ---- 2. the frontier ----
const least = () => frontier.points[0].bytes, most = () => frontier.points[frontier.points.length - 1].bytes;
const saves = () => 1 - least() / most();
function gotFrontier(answer) {
  if (answer.error) {
    say('model-says', tooLarge(answer.error), true);
    return;
  }
  frontier = answer;
  for (const id of ['budget', 'bytes', 'mode']) $(id).disabled = false;
  const n = frontier.points.length;
  $('tour-begin').disabled = n < 2;
  say('model-says', n === 1 ? `Nothing can be saved here: ${bytes(most())}, whatever is computed again.`
    : `Any budget from ${bytes(least())} to ${bytes(most())} will do, up to ${percent(saves())} fewer bytes; above that nothing `
      + `need be computed again.`);
  if (!state.budget) state.budget = Math.round((least() + most()) / 2);
  $('bytes').value = state.budget;
  replan();
}
// The ends of the slider are a little outside the possible range.
const span = () => [least() - (most() - least()) * 0.08 - 1, most() + (most() - least()) * 0.08 + 1];
function slide(from) {
  if (!frontier) return;
  const [a, b] = span();
  if (from === 'budget') $('bytes').value = state.budget = Math.round(a + (b - a) * $('budget').value / 1000);
  else $('bytes').value = state.budget = Math.min(Math.max(1, Math.round(Number($('bytes').value))) || state.budget, 4e9);
  replan();
}
$('budget').oninput = () => slide('budget');
$('bytes').onchange = () => slide('bytes');
$('mode').onchange = () => {
  state.mode = Object.keys(MODES).find(k => MODES[k] === Number($('mode').value));
  replan();
};
let planned = null; // callback for the last plan requested
function replan() {
  if (!frontier) return;
  const [a, b] = span();
  $('budget').value = 1000 * (state.budget - a) / (b - a);
  $('budget').setAttribute('aria-valuetext', bytes(state.budget));
  $('mode').value = MODES[state.mode];
  toAddress();
  ask('plan', [MODES[state.mode], state.mode === 'optimal' ? state.budget : 0], gotPlan);
}
function gotPlan(answer) {
  if (answer.error) {
    plan = null;
    const proven = frontier.proven_bytes;
    say('says', `${apart(state.budget, least())} ${state.budget === 1 ? 'is' : 'are'} too few: ${
      apart(least(), state.budget)} are the fewest that a plan was found for`
      + (proven > state.budget ? `, and it is proven that no plan fits.` : `; ${apart(proven, least())} are proven necessary.`), true);
  } else {
    plan = answer;
    const again = plan.instructions.filter(i => i[4]).length;
    const over = plan.bytes > state.budget ? ` More than the budget of ${bytes(state.budget)}.` : '';
    say('says', `${bytes(plan.bytes)}, of them ${bytes(plan.arena)} for the step. ${again === 0 ? 'Nothing is computed again.'
      : `${again} of ${plan.instructions.length} instructions ${again === 1 ? 'computes' : 'compute'} something again: a step takes ${
        percent(plan.overhead)} longer.`}${
      again && state.mode === 'optimal' ? (plan.work <= plan.proven_work * 1.00001 ? ' No schedule in this budget is faster: proven.'
        : ` At best ${percent(1 - plan.proven_work / plan.work)} of the time could still be saved.`) : ''}${over}`, over);
    prepare();
  }
  say('method-says', state.mode === 'optimal' ? '' : `This method does not look at the budget.${
    state.mode === 'segments' && !['gpt', 'translator', 'chain'].includes(state.model) ? ' This network has no blocks to be its segments.' : ''}${
    plan && plan.bytes > most() && !plan.overhead ? ` The optimal one needs ${bytes(most())} for the same time.` : ''}`);
  drawFrontier();
  drawStep();
  showPart();
  if (!planned || waiting.has('plan')) return; // a newer request waits
  const then = planned;
  planned = null;
  then();
}
function drawFrontier() {
  const box = $('frontier'), H = innerWidth < 600 ? 320 : 260, W = across(box, H), L = 56, R = 12, T = 20, B = 34;
  const [a, b] = span(), top = Math.max(0.02, ...frontier.points.map(p => p.overhead)) * 1.1;
  const x = v => L + (W - L - R) * (v - a) / (b - a), y = v => H - B - (H - T - B) * v / top;
  let found = '', proven = '';
  frontier.points.forEach((p, i) => {
    const to = i + 1 < frontier.points.length ? frontier.points[i + 1].bytes : b;
    const low = Math.max(0, (1 + p.overhead) * p.proven_work / p.work - 1);
    found += `${i ? 'L' : 'M'}${x(p.bytes)},${y(p.overhead)}H${x(to)}`;
    proven += `${i ? 'L' : 'M'}${x(p.bytes)},${y(low)}H${x(to)}`;
  });
  box.replaceChildren();
  const put = (tag, attributes, text) => box.append(svg(tag, attributes, text));
  const no = x(Math.min(frontier.proven_bytes, least()));
  put('rect', { x: L, y: T, width: Math.max(0, no - L), height: H - T - B, fill: color('grey'), opacity: 0.35 });
  put('rect', { x: no, y: T, width: Math.max(0, x(least()) - no), height: H - T - B, fill: color('grey'), opacity: 0.15 });
  const right = x(least()), turned = right - L < 90; // label of the grey region, upright where it is narrow
  put('text', { x: (L + right) / 2 + (turned ? 4 : 0), y: turned ? (T + H - B) / 2 : T + 16, 'text-anchor': 'middle', class: 'grey-says',
    ...(turned ? { transform: `rotate(-90 ${(L + right) / 2 + 4} ${(T + H - B) / 2})` } : {}) }, 'no plan fits');
  // between the bound and the plans found
  let area = '';
  frontier.points.forEach((p, i) => {
    const to = i + 1 < frontier.points.length ? frontier.points[i + 1].bytes : b;
    const low = Math.max(0, (1 + p.overhead) * p.proven_work / p.work - 1);
    area += `M${x(p.bytes)},${y(p.overhead)}H${x(to)}V${y(low)}H${x(p.bytes)}Z`;
  });
  put('path', { d: area, fill: color('sky'), opacity: 0.35 });
  put('path', { d: proven, fill: 'none', stroke: color('sky'), 'stroke-width': 1.5, 'stroke-dasharray': '4 3' });
  put('path', { d: found, fill: 'none', stroke: color('blue'), 'stroke-width': 2.5 });
  put('line', { x1: L, x2: W - R, y1: H - B, y2: H - B, stroke: color('line') });
  const up = spacing(top, 5), on = spacing(b - a, W < 500 ? 4 : 6);
  for (let i = 0; i * up <= top; i++)
    put('text', { x: L - 6, y: y(i * up) + 4, 'text-anchor': 'end' }, percent(i * up));
  for (let at = Math.ceil(a / on) * on; x(at) < W - R - 30; at += on) {
    put('line', { x1: x(at), x2: x(at), y1: H - B, y2: H - B + 4, stroke: color('soft') });
    if (x(at) > L + 20) put('text', { x: x(at), y: H - B + 17, 'text-anchor': 'middle' }, bytes(Math.round(at)));
  }
  put('text', { x: W - R, y: H - 4, 'text-anchor': 'end' }, 'bytes');
  put('text', { x: 4, y: 11 }, 'time above the least');
  const mark = Math.min(Math.max(x(state.budget), L), W - R);
  put('line', { x1: mark, x2: mark, y1: T, y2: H - B, stroke: color('red'), 'stroke-width': 1.5 });
  if (plan) {
    const right = x(plan.bytes) > W - R, above = plan.overhead > top, cx = right ? W - R : x(plan.bytes);
    put('circle', { cx, cy: above ? T : y(plan.overhead), r: 6, fill: color('red') });
    if (above) put('text', { x: cx - 10, y: T + 4, 'text-anchor': 'end' }, `↑ ${percent(plan.overhead)}`);
    if (right) put('text', { x: cx - 10, y: (above ? T : y(plan.overhead)) - 10, 'text-anchor': 'end' }, `${bytes(plan.bytes)} →`);
  }
  say('frontier-says', `Solid: the least time found for each budget; dashed: below it nothing is possible, proven; between `
    + `them a better schedule may exist${frontier.points.every(p => p.work <= p.proven_work * 1.00001) ? ' (nowhere here)' : ''}. `
    + `Grey, at the left: ${frontier.proven_bytes < least() ? `too few bytes. Below ${apart(frontier.proven_bytes, least())} it is `
      + `proven that no plan fits; from there to ${apart(least(), frontier.proven_bytes)}, paler, none was found`
      : `fewer than ${bytes(least())}; it is proven that no plan fits`}. `
    + `Upright line: the budget; dot: the plan shown below.`);
}

