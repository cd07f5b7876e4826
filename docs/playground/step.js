// ---- 3. a step ----
const KINDS = ['a result', 'kept beside a result', 'the gradient of', 'the gradient of the weights', 'workspace of', 'a sum that waits'];
let chosen = -1, box = -1; // a tensor; one of the plan's buffers

// Finds for each computed result its spans [first, last instruction, buffer]. If an op overwrites its input, the
// span of the input ends there.
function prepare() {
  const writes = []; // [instruction, tensor, buffer]
  plan.instructions.forEach(([kind, id, , , , at], i) => {
    if (kind === FORWARD) writes.push([i, id, at ? plan.buffers.findIndex(([start, end, offset, size, , what]) =>
      what === 0 && start <= i && i <= end && offset < at && at <= offset + size) : -1]);
  });
  holds = [...new Set(writes.map(w => w[1]))].sort((p, q) => p - q).map(id => ({ id, name: plan.names[id],
    first: writes.find(w => w[1] === id)[0],
    spans: writes.filter(w => w[1] === id && w[2] >= 0).map(([i, , b]) => {
      const over = writes.find(w => w[0] > i && w[2] === b);
      return [i, over ? over[0] - 1 : plan.buffers[b][1], b];
    }) }));
  const cells = $('cells');
  cells.replaceChildren(...holds.map(h => {
    const cell = Object.assign(document.createElement('i'), { title: h.name });
    cell.onclick = () => choose(h.id);
    return cell;
  }));
  $('at').max = plan.instructions.length - 1;
  state.at = Math.min(state.at, plan.instructions.length - 1);
  chosen = box = -1;
  drawNetwork();
}
const isHeld = h => h.spans.some(([s, e]) => s <= state.at && state.at <= e);
// Returns the state of a result at this instruction: given, none (not yet), now, again, held, freed, or out (the loss, which is not in
// the arena).
function stateOf(id) {
  const h = holds.find(h => h.id === id), [kind, runs, , , again] = plan.instructions[state.at];
  const back = kind === BACKWARD && runs === id ? ' back' : '';
  if (!h) return 'input';
  if (kind === FORWARD && runs === id) return again ? 'again' : 'now';
  if (!h.spans.length) return (h.first < state.at ? 'held out' : 'none') + back;
  return (isHeld(h) ? 'held' : h.first < state.at ? 'freed' : 'none') + back;
}
const WORDS = { input: 'given', none: 'not computed yet', now: 'running', again: 'running again', held: 'held', freed: 'let go' };
const inWords = (id, now) => WORDS[now.split(' ')[0]] + (now.endsWith(' back') ? '; the way back goes through it' : '');
const does = ([kind, id, , , again]) => kind >= BEGIN ? ['begins a micro-batch', 'ends the micro-batch', 'all gradients are complete'][kind - BEGIN]
  : `${kind === FORWARD ? (again ? 'computes again' : 'computes') : kind === BACKWARD
  ? 'goes back through' : 'updates'} ${plan.names[id]}`;

// ---- the arena ----
const luminance = c => {
  const [r, g, b] = [1, 3, 5].map(i => parseInt(c.slice(i, i + 2), 16) / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const onColor = c => luminance(c) > 0.179 ? '#000000' : '#ffffff'; // the one with more contrast
// Returns a buffer's name: of its successive results, the one that stays longest.
function nameOf(b) {
  const stays = holds.flatMap(h => h.spans.filter(s => s[2] === b).map(s => [s[1] - s[0], h.name])).sort((p, q) => q[0] - p[0]);
  return stays.length ? stays[0][1] : plan.names[plan.buffers[b][4]];
}
const placeOf = (b, W, H) => {
  const [start, end, offset, size] = plan.buffers[b], n = plan.instructions.length, y = v => H - H * v / (plan.arena || 1);
  return { x: W * start / n, y: y(offset + size), wide: Math.max(1, W * (Math.min(end, n - 1) + 1 - start) / n - 0.5),
    high: Math.max(1, y(offset) - y(offset + size) - 0.7) };
};
let named = 0; // boxes with their name in them
function drawArena() {
  const canvas = $('arena'), g = canvas.getContext('2d'), sharp = Math.min(devicePixelRatio || 1, 2);
  const W = canvas.width = Math.round(canvas.clientWidth * sharp), H = canvas.height = Math.round(canvas.clientHeight * sharp);
  named = 0;
  if (!plan) return;
  const n = plan.instructions.length, now = W * (state.at + 1) / n;
  const kinds = ['blue', 'sky', 'orange', 'red', 'grey', 'grey'].map(color), places = plan.buffers.map((_, b) => placeOf(b, W, H));
  places.forEach(({ x, y, wide, high }, b) => {
    g.fillStyle = kinds[plan.buffers[b][5]];
    g.fillRect(x, y, wide, high);
  });
  g.fillStyle = color('wash');
  g.globalAlpha = 0.6;
  g.fillRect(now, 0, W, H);
  g.globalAlpha = 1;
  g.font = `${11 * sharp}px system-ui, sans-serif`;
  g.textBaseline = 'middle';
  places.forEach(({ x, y, wide, high }, b) => { // the name in the past or future part of its box, whichever is larger
    const past = Math.min(Math.max(now - x, 0), wide), left = past >= wide - past, room = Math.max(past, wide - past) - 6 * sharp;
    const text = high >= 12 * sharp && room >= 20 * sharp ? nameOf(b) : '';
    if (!text || g.measureText(text).width > room) return;
    g.fillStyle = left ? onColor(kinds[plan.buffers[b][5]]) : color('ink');
    g.fillText(text, (left ? x : x + past) + 3 * sharp, y + high / 2);
    named++;
  });
  g.strokeStyle = color('ink');
  g.lineWidth = 1.5 * sharp;
  g.strokeRect(W * state.at / n, 1, Math.max(3, W / n), H - 2);
  g.lineWidth = 2.5 * sharp;
  places.forEach(({ x, y, wide, high }, b) => { // a frame around the selected box
    if (b === box || (box < 0 && isOf(b, chosen))) g.strokeRect(x - sharp, y - sharp, wide + 2 * sharp, high + 2 * sharp);
  });
}
// Returns the successive results of a buffer.
const inside = b => holds.filter(h => h.spans.some(s => s[2] === b));
const isOf = (b, id) => plan.buffers[b][5] <= 2 && (plan.buffers[b][4] === id || inside(b).some(h => h.id === id));

// ---- the selection: a result in the drawing, or a buffer in the arena ----
const when = ([from, to]) => from === to ? `at instruction ${from + 1}` : `from instruction ${from + 1} to ${to + 1}`;
function boxInWords() {
  const [start, end, offset, size, id, kind] = plan.buffers[box], n = plan.instructions.length, held = inside(box).map(h => h.name);
  const what = kind === 0 && held.length > 1 ? `${held.join(', then ')} in its place` : nameOf(box);
  const of = kind < 2 || kind === 5 ? '' : ` ${plan.names[id]}`;
  const last = end > start && end < n ? `, ${end + 1} ${does(plan.instructions[end])}` : '';
  return `${what}: ${KINDS[kind]}${of}, ${bytes(size)} at address ${figure(offset)}, ${when([start, Math.min(end, n - 1)])}: `
    + `instruction ${start + 1} ${does(plan.instructions[start])}${last}.`;
}
function resultInWords() {
  const [op, , reads] = nodes[chosen], name = id => plan.names[id] || nodes[id][0], h = holds.find(h => h.id === chosen);
  const from = [...new Set(reads.filter(r => !isParam(r)).map(name))], weights = reads.filter(isParam).reduce((s, w) => s + sizeOf(w), 0);
  return `${name(chosen)}: ${op.replace(/_/g, ' ')}, ${shapeOf(chosen)}${sizeOf(chosen) ? `, ${bytes(sizeOf(chosen))}` : ''}. `
    + (from.length ? `It reads ${from.join(', ')}. ` : '') + (weights ? `It has ${bytes(weights)} of weights. ` : '')
    + `${!h ? 'It is given' : h.spans.length ? `It is held ${h.spans.map(when).join(', again ')}` : 'It lies outside the arena'}. `
    + `Now: ${inWords(chosen, stateOf(chosen))}.`;
}
function tellChosen() {
  say('chosen-says', plan && box >= 0 ? boxInWords() : plan && chosen >= 0 ? resultInWords()
    : 'Point at a box, tap it, or use the arrow keys: what it is will stand here.');
}
function mark() {
  for (const [id, g] of drawing.boxes) g.setAttribute('aria-selected', String(id === chosen));
  if (chosen >= 0 && drawing.boxes.has(chosen)) $('network').setAttribute('aria-activedescendant', `tensor-${chosen}`);
  else $('network').removeAttribute('aria-activedescendant');
  drawArena();
  tellChosen();
}
function choose(id) {
  chosen = id;
  box = -1;
  mark();
}
function chooseBox(b) {
  if (b === box) return;
  box = b;
  chosen = b < 0 ? -1 : inside(b).length ? inside(b).at(-1).id : plan.buffers[b][5] <= 2 ? plan.buffers[b][4] : -1;
  mark();
}
// Returns the buffer at a position of the arena, or the nearest one within a finger's breadth.
function boxAt(e) {
  const canvas = $('arena'), W = canvas.clientWidth, H = canvas.clientHeight;
  let best = -1, least = e.pointerType === 'touch' ? 12 : 1;
  plan.buffers.forEach((_, b) => {
    const { x, y, wide, high } = placeOf(b, W, H);
    const off = Math.hypot(Math.max(x - e.offsetX, 0, e.offsetX - x - wide), Math.max(y - e.offsetY, 0, e.offsetY - y - high));
    if (off < least) [best, least] = [b, off];
  });
  return best;
}
// Returns the buffers in use now, from the lowest address up.
const inUse = () => plan.buffers.map((b, i) => [b, i]).filter(([b]) => b[0] <= state.at && state.at <= b[1])
  .sort((p, q) => p[0][2] - q[0][2]).map(p => p[1]);

function drawStep() {
  const never = !plan || !plan.instructions.some(i => i[4]);
  if (never && document.activeElement === $('again')) $('next').focus();
  $('again').disabled = never;
  drawArena();
  if (!plan) {
    say('at-says', '');
    tellChosen();
    $('cells').replaceChildren();
    $('network-drawing').replaceChildren();
    drawing = null;
    return;
  }
  const now = plan.instructions[state.at], cells = $('cells').children;
  $('at').value = state.at;
  $('at').setAttribute('aria-valuetext', `${state.at + 1}: ${does(now)}`);
  let held = 0, freed = 0;
  holds.forEach((h, i) => {
    const is = cells[i].className = stateOf(h.id);
    held += is === 'held' || is === 'held back';
    freed += is.startsWith('freed');
  });
  colourNetwork(stateOf, now[0] === UPDATE || now[0] >= BEGIN ? -1 : now[1]);
  say('at-says', `${state.at + 1} of ${plan.instructions.length}: ${does(now)}. `
    + `${bytes(now[3])} of the arena ${now[3] === 1 ? 'is' : 'are'} in use; `
    + `${are(held, 'result')} held, ${freed} ${freed === 1 ? 'was' : 'were'} let go.`);
  tellChosen();
  toAddress();
}
function go(to) {
  if (!plan) return;
  state.at = Math.min(Math.max(to, 0), plan.instructions.length - 1);
  drawStep();
}
function play(on, pace) {
  clearInterval(playing);
  $('at-says').setAttribute('aria-live', on ? 'off' : 'polite'); // a screen reader could not follow
  $('chosen-says').setAttribute('aria-live', on ? 'off' : 'polite');
  playing = on ? setInterval(() => {
    if (!plan || state.at + 1 >= plan.instructions.length) play(false);
    else go(state.at + 1);
  }, pace || Math.max(30, Math.min(200, 12000 / (plan ? plan.instructions.length : 100)))) : 0;
  $('play').setAttribute('aria-pressed', String(on));
  $('play').textContent = on ? '❚❚ pause' : '▶ play';
}
$('first').onclick = () => go(0);
$('back').onclick = () => go(state.at - 1);
$('next').onclick = () => go(state.at + 1);
$('again').onclick = () => { // wraps from the last to the first
  const n = plan.instructions.length;
  for (let k = 1; k <= n; k++)
    if (plan.instructions[(state.at + k) % n][4]) {
      go((state.at + k) % n);
      break;
    }
};
$('at').oninput = () => go(Number($('at').value));
$('play').onclick = () => {
  if (!playing && plan && state.at + 1 >= plan.instructions.length) go(0);
  play(!playing);
};

// ---- by mouse, finger, keys ----
function showChosen() {
  if (drawing.boxes.has(chosen)) intoView(drawing.boxes.get(chosen));
}
$('arena').onclick = e => {
  if (!plan) return;
  go(Math.floor(plan.instructions.length * e.offsetX / $('arena').clientWidth));
  chooseBox(boxAt(e));
  showChosen();
};
$('arena').onpointermove = e => plan && e.pointerType === 'mouse' && chooseBox(boxAt(e));
$('arena').onkeydown = e => {
  if (!plan) return;
  const step = { ArrowLeft: -1, ArrowRight: 1, Home: -1e6, End: 1e6 }[e.key], up = { ArrowUp: 1, ArrowDown: -1 }[e.key];
  if (step) go(state.at + step);
  else if (up) {
    const used = inUse(), i = used.indexOf(box);
    if (!used.length) return;
    chooseBox(i < 0 ? used[up > 0 ? 0 : used.length - 1] : used[Math.min(Math.max(i + up, 0), used.length - 1)]);
    showChosen();
  } else return;
  e.preventDefault();
};
$('network').onkeydown = e => {
  if (!drawing) return;
  const by = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, Home: -1e6, End: 1e6 }[e.key], all = drawing.order;
  const h = holds.find(h => h.id === chosen);
  if (by) {
    choose(all[chosen < 0 ? 0 : Math.min(Math.max(all.indexOf(chosen) + by, 0), all.length - 1)]);
    showChosen();
  } else if (e.key === 'Enter' && h) go(h.first);
  else return;
  e.preventDefault();
};
