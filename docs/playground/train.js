// ---- 4. training: two runs, each in a worker with a separate engine ----
const SIZES = [['layers', 1, 8, 2], ['heads', 1, 8, 2], ['width', 4, 128, 32], ['context', 4, 128, 32],
  ['rows', 1, 64, 8]];
const TITLES = { rows: 'examples a step', context: 'context, bytes' };
const VERSE = `Tyger Tyger, burning bright,
In the forests of the night;
What immortal hand or eye,
Could frame thy fearful symmetry?

In what distant deeps or skies,
Burnt the fire of thine eyes?
On what wings dare he aspire?
What the hand, dare seize the fire?
`;
const training = { learn: 'gpt', layers: 2, heads: 2, width: 32, context: 32, rows: 8, unequal: 0, fault: 0, text: VERSE,
  a: { at: 8, budget: 0 }, b: { at: 2, budget: 760000 } };
let points = spirals(), cross = [0, 0], map = null, learning = false, ready = null, turn = 0; // turn: number of the current run; older ones are over

// Returns two spirals of 97 points each (Lang and Witbrock 1988), in whole thousandths.
function spirals() {
  const all = [];
  for (let i = 0; i < 97; i++)
    for (const side of [1, -1]) {
      const angle = i * Math.PI / 16, radius = 0.95 * (104 - i) / 104;
      all.push([Math.round(1000 * side * radius * Math.sin(angle)), Math.round(1000 * side * radius * Math.cos(angle)),
        side > 0 ? 0 : 1]);
    }
  return all;
}
const learned = () => training.learn === 'gpt' ? training.text : points.map(p => `${p.join(' ')}\n`).join('');

// Returns the first choices.
const firstOf = learn => learn === 'gpt'
  ? { layers: 2, heads: 2, width: 32, context: 32, rows: 8, a: { at: 8, budget: 0 }, b: { at: 2, budget: 760000 } }
  : { layers: 4, heads: 2, width: 32, context: 32, rows: 64, a: { at: 64, budget: 0 }, b: { at: 32, budget: 70000 } };

// Returns the names of recomputed results: "tanh 0 (twice), ...".
function againInWords({ again, results }) {
  if (!again.length) return `All ${results} results stay until the way back has used them.`;
  const times = new Map();
  for (const name of again) times.set(name, (times.get(name) || 0) + 1);
  const names = [...times].map(([name, n]) => name + (n > 1 ? ` (${n === 2 ? 'twice' : `${figure(n)} times`})` : ''));
  const more = names.length - 8;
  return `Of ${results} results ${figure(names.length)} ${names.length === 1 ? 'is' : 'are'} let go and computed again: ${
    names.slice(0, more > 1 ? 8 : names.length).join(', ')}${more > 1 ? ` and ${more} more` : ''}.`;
}

class Run {
  constructor(name) {
    this.name = name;
    this.losses = [];
    this.waiting = [];
    this.worker = new Worker(inWorker);
    this.worker.postMessage({ program });
    this.worker.onmessage = ({ data }) => this.waiting.shift()(data.answer);
    this.worker.onerror = broken;
    for (const [key, title, most] of [['at', 'examples at once', 64], ['budget', 'budget, bytes (0: no limit)', 4e9]]) {
      const label = document.createElement('label'), input = document.createElement('input');
      Object.assign(input, { type: 'number', min: key === 'at' ? 1 : 0, max: most, id: `${name}-${key}` });
      input.onchange = () => {
        input.value = training[name][key] = Math.min(Math.max(Math.round(Number(input.value)) || 0, Number(input.min)), most);
        restart();
      };
      label.append(title, input);
      input.setAttribute('aria-label', `run ${name.toUpperCase()}: ${title}`);
      $(`${name}-fields`).append(label);
    }
  }
  ask(call, of, text) {
    return new Promise(done => {
      this.waiting.push(done);
      this.worker.postMessage({ call, of, text });
    });
  }
  // Returns false for results that arrive after another turn has begun.
  async open() {
    const o = training, mine = o[this.name], begun = turn;
    const of = [o.learn === 'gpt' ? 0 : 1, o.layers, o.heads, o.width, o.context, o.rows, mine.at, 0, mine.budget,
      o.unequal, o.fault, 0.003, 1];
    this.losses = [];
    this.hash = '';
    $(`${this.name}-shows`).textContent = '';
    const plan = await this.ask('open', of, new TextEncoder().encode(learned()));
    if (begun !== turn) return false;
    this.plan = plan;
    this.tell();
    return !this.plan.error;
  }
  async step() {
    const begun = turn, now = await this.ask('step', []);
    if (begun !== turn) return false;
    if (now.error) this.plan = now;
    else {
      this.losses.push(now.loss);
      this.hash = now.hash;
    }
    return !now.error;
  }
  async show() {
    const begun = turn, { shows } = await this.ask('shows', [120]);
    if (!shows || begun !== turn) return;
    if (training.learn === 'gpt') $(`${this.name}-shows`).textContent = new TextDecoder().decode(Uint8Array.from(shows));
    else if (this.name === 'a') {
      map = shows;
      drawPoints();
    }
  }
  tell() {
    const p = this.plan, n = this.losses.length;
    say(`${this.name}-says`, p.error || `${bytes(p.bytes)}; a step ${p.overhead ? `takes ${percent(p.overhead)} longer` : 'computes nothing twice'}. `
      + `Step ${figure(n)}${n ? `, loss ${this.losses[n - 1].toFixed(4)}` : ''}.`, p.error);
    say(`${this.name}-again`, p.error ? '' : againInWords(p));
    $(`${this.name}-hash`).textContent = this.hash;
  }
}
const runs = [new Run('a'), new Run('b')];

function command(run) {
  const o = training, mine = o[run.name];
  return `build/tiny --model ${o.learn} --data data.txt --layers ${o.layers} ${o.learn === 'gpt' ? `--heads ${o.heads} ` : ''}--width ${o.width}`
    + `${o.learn === 'gpt' ? ` --context ${o.context}` : ''} --rows ${o.rows} --micro ${mine.at} --budget ${mine.budget}`
    + `${o.unequal ? ' --unequal' : ''}${o.fault ? ' --fault' : ''} --steps ${run.losses.length}`;
}
const quiet = ['a-says', 'a-again', 'b-again', 'a-hash', 'b-says', 'b-hash', 'same', 'losses-says']; // texts that change at each step
function tellBoth() {
  const [a, b] = runs, same = a.hash === b.hash, n = a.losses.length;
  for (const r of runs) r.tell();
  $('command').replaceChildren(...`make build/tiny\n${runs.map(command).join('\n')}`.split(/(--\S+(?: [^-\s]+)?)/).map((text, i) =>
    i % 2 ? Object.assign(document.createElement('span'), { className: 'option', textContent: text }) : text)); // lines may break between options
  if (!n || n !== b.losses.length) say('same', '');
  else if (same) say('same', `After ${count(n, 'step')} all bits of both runs' weights are equal.`);
  else say('same', `After ${count(n, 'step')} the weights differ${training.fault ? ': means of unequal parts were averaged, so that the result depends on how the batch was cut.' : '.'}`, true);
  $('fault-says').textContent = !training.fault ? '' : 'Each micro-batch divides by its own number of targets, and the means are averaged. '
    + (training.unequal ? 'With windows of unequal lengths, those in small parts count too much.'
      : 'All windows have one length now, so this makes no difference: tick unequal lengths, too.');
}
function drawLosses() {
  const box = $('losses'), W = across(box, 200), H = 200, L = 44, B = 24, n = Math.max(2, ...runs.map(r => r.losses.length));
  const all = runs.flatMap(r => r.losses), top = Math.max(0.1, ...all) * 1.05;
  box.replaceChildren();
  const apart = spacing(top, 5);
  for (let v = 0; v <= top; v += apart) {
    const y = H - B - (H - B - 8) * v / top;
    box.append(svg('line', { x1: L, x2: W - 8, y1: y, y2: y, stroke: color('line'), 'stroke-width': 0.5 }));
    box.append(svg('text', { x: L - 6, y: y + 4, 'text-anchor': 'end' }, String(Number(v.toFixed(3)))));
  }
  box.append(svg('text', { x: W - 8, y: H - 6, 'text-anchor': 'end' }, `step ${n}`));
  const last = runs.map(r => r.losses.length ? r.losses[r.losses.length - 1].toFixed(4) : '');
  say('losses-says', `Loss by step: run A thick, run B thin and dashed. ${all.length
    ? `Now A ${last[0]}, B ${last[1]}.` : 'Press train to begin.'}`);
  runs.forEach((r, i) => {
    const d = r.losses.map((v, k) => `${k ? 'L' : 'M'}${L + (W - L - 8) * k / (n - 1)},${H - B - (H - B - 8) * v / top}`).join('');
    box.append(svg('path', { d, fill: 'none', stroke: color(i ? 'red' : 'blue'), 'stroke-width': i ? 2 : 5,
      'stroke-dasharray': i ? '5 4' : 'none' }));
  });
}
function drawPoints() {
  const canvas = $('points'), g = canvas.getContext('2d'), S = canvas.width, side = 40;
  g.clearRect(0, 0, S, S);
  for (let i = 0; map && i < side * side; i++) {
    g.fillStyle = color(map[i] ? 'orange' : 'sky');
    g.globalAlpha = 0.45;
    g.fillRect(S * (i % side) / side, S - S * (Math.floor(i / side) + 1) / side, S / side, S / side);
  }
  g.globalAlpha = 1;
  for (const [x, y, c] of points) { // of two colours and shapes
    const px = S * (x + 1000) / 2000, py = S - S * (y + 1000) / 2000;
    g.fillStyle = color(c ? 'red' : 'blue');
    g.beginPath();
    if (c) g.rect(px - 4, py - 4, 8, 8);
    else g.arc(px, py, 4.5, 0, 7);
    g.fill();
  }
  if (document.activeElement === canvas) {
    const px = S * (cross[0] + 1000) / 2000, py = S - S * (cross[1] + 1000) / 2000;
    g.strokeStyle = color('ink');
    g.lineWidth = 1.5;
    g.strokeRect(px - 7, py - 7, 14, 14);
  }
  say('points-says', `${count(points.length, 'point')}; the cross is at ${cross.map(v => (v / 1000).toFixed(2)).join(', ')}.`);
}

// ---- running ----
function restart() {
  turn++;
  ready = begin();
  return ready;
}
async function begin() {
  const begun = turn;
  learn(false);
  await Promise.all(runs.map(r => r.open()));
  if (begun !== turn) return;
  map = null;
  if (training.learn !== 'gpt') drawPoints();
  drawLosses();
  tellBoth();
  URL.revokeObjectURL($('save').href);
  $('save').href = URL.createObjectURL(new Blob([learned()], { type: 'text/plain' }));
  toAddress();
}
function learn(on) {
  learning = on;
  $('run').setAttribute('aria-pressed', String(on));
  $('run').textContent = on ? '❚❚ pause' : '▶ train';
  for (const id of quiet) $(id).setAttribute('aria-live', on ? 'off' : 'polite');
}
let stepping = null, latest = 0; // the current step of both runs; number of the latest request for steps
async function step() {
  const begun = turn;
  if (runs.some(r => !r.plan || r.plan.error)) return false;
  const good = await Promise.all(runs.map(r => r.step()));
  if (begun !== turn) return false;
  drawLosses();
  tellBoth();
  if (runs[0].losses.length % 10 === 0 || !learning) await Promise.all(runs.map(r => r.show()));
  return begun === turn && good.every(Boolean);
}
// Runs one step after the other until it is stopped.
async function steps() {
  const mine = ++latest, begun = turn;
  while (stepping) await stepping;
  while (mine === latest && begun === turn) {
    const good = await (stepping = step());
    stepping = null;
    if (begun !== turn) return;
    if (!good) learn(false);
    if (!learning) return;
  }
}
$('run').onclick = async () => {
  await ready;
  learn(!learning);
  if (learning) steps();
};
$('reset').onclick = restart;
for (const id of ['unequal', 'fault'])
  $(id).onchange = () => {
    training[id] = Number($(id).checked);
    restart();
  };
$('text').onchange = () => {
  training.text = $('text').value;
  restart();
};
function addPoint() {
  points.push([...cross, Number($('class').value)]);
  restart();
}
$('points').onclick = e => {
  const at = v => Math.round(2000 * v / $('points').clientWidth - 1000);
  cross = [at(e.offsetX), -at(e.offsetY)];
  addPoint();
};
$('points').onkeydown = e => {
  const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[e.key];
  if (by) cross = cross.map((v, i) => Math.min(Math.max(v + by[i] * (e.shiftKey ? 10 : 50), -1000), 1000));
  else if (e.key === 'Enter' || e.key === ' ') addPoint();
  else return;
  e.preventDefault();
  drawPoints();
};
$('points').onfocus = $('points').onblur = drawPoints;
$('undo').onclick = () => {
  points.pop();
  restart();
};
$('spirals').onclick = () => {
  points = spirals();
  restart();
};
$('clear').onclick = () => {
  points = [];
  restart();
};

// ---- choices and the address ----
function showTraining() {
  const form = $('training'), gpt = training.learn === 'gpt';
  form.replaceChildren();
  const select = document.createElement('select');
  select.add(new Option('a GPT, byte by byte', 'gpt', false, gpt));
  select.add(new Option('an MLP, points of two classes', 'points', false, !gpt));
  select.id = 'learn';
  select.onchange = () => {
    Object.assign(training, { learn: select.value, ...firstOf(select.value) });
    showTraining();
    $('learn').focus();
    restart();
  };
  field(form, 'Learn', select, '');
  for (const [name, least, most] of SIZES) {
    if (!gpt && (name === 'heads' || name === 'context')) continue;
    const input = Object.assign(document.createElement('input'), { type: 'number', min: least, max: most, value: training[name] });
    input.onchange = () => {
      training[name] = Math.min(Math.max(Math.round(Number(input.value)) || least, least), most);
      input.value = training[name];
      restart();
    };
    field(form, TITLES[name] || name, input, 'size');
  }
  tellWords('training-words', [...(gpt ? [['layers', 'blocks'], ['heads'], ['width'], ['context', 'window']] : [['layers'], ['width']]),
    ['examples a step', 'examples']]);
  $('text-label').hidden = $('a-shows').hidden = $('b-shows').hidden = !gpt;
  $('points-box').hidden = gpt;
  $('unequal').parentElement.hidden = $('fault').parentElement.hidden = !gpt;
  $('text').value = training.text;
  for (const id of ['unequal', 'fault']) $(id).checked = Boolean(training[id]);
  for (const r of runs) for (const key of ['at', 'budget']) $(`${r.name}-${key}`).value = training[r.name][key];
}
function trainingToAddress(p) {
  p.set('learn', training.learn);
  for (const [name] of SIZES) p.set(`t-${name}`, training[name]);
  for (const r of runs) for (const key of ['at', 'budget']) p.set(`${r.name}-${key}`, training[r.name][key]);
  for (const id of ['unequal', 'fault']) if (training[id]) p.set(id, 1); else p.delete(id);
  const dots = points.map(t => t.join(',')).join(';'), usual = spirals().map(t => t.join(',')).join(';');
  const mine = training.learn === 'points' && dots !== usual;
  if (mine && dots.length <= 2000) p.set('points', dots);
  else p.delete('points');
  const given = training.learn === 'gpt' && training.text !== VERSE;
  if (given && training.text.length <= 2000) p.set('text', training.text);
  else p.delete('text');
  say('text-says', given && training.text.length > 2000
    ? 'This text is too long for the address: who opens a copied link will see the verse instead.'
    : mine && dots.length > 2000 ? 'These points are too many for the address: who opens a copied link will see the spirals.' : '');
}
function trainingFromAddress() {
  const p = new URLSearchParams(location.hash.slice(1));
  training.learn = p.get('learn') === 'points' ? 'points' : 'gpt';
  Object.assign(training, firstOf(training.learn));
  for (const [name, least, most] of SIZES) training[name] = whole(p, `t-${name}`, least, most, training[name]);
  if (p.has('points')) points = p.get('points').split(';').filter(t => t).map(t => t.split(',').map(Number))
    .filter(t => t.length === 3 && t.every(Number.isInteger) && Math.abs(t[0]) <= 1000 && Math.abs(t[1]) <= 1000 && (t[2] === 0 || t[2] === 1));
  for (const r of runs) for (const key of ['at', 'budget'])
    training[r.name][key] = whole(p, `${r.name}-${key}`, key === 'at' ? 1 : 0, 4e9, training[r.name][key]);
  for (const id of ['unequal', 'fault']) training[id] = p.get(id) === '1' ? 1 : 0;
  training.text = p.get('text') ?? training.text;
}
trainingFromAddress();
showTraining();
restart();
