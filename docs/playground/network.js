// ---- the drawing of the network: a box for each result that the plan computes ----
const BENDS = ['tanh', 'relu', 'gelu']; // drawn next to their input
const BOX = { high: 22, wide: 62, bend: 36, gap: 8, down: 38, lane: 9, edge: 8 };
let nodes = [], drawing = null; // tensors of the model; {parts, of: tensor -> part}

const isParam = id => nodes[id][0] === 'param';
const shapeOf = id => nodes[id][1].length ? nodes[id][1].join(' × ') : 'a sum and a count';
const sizeOf = id => nodes[id][1].length ? 4 * nodes[id][1].reduce((p, n) => p * n, 1) : 0;

// Returns the drawn results that a result reads, through tensors without a box (fused ops, views).
function readsOf(id, shown) {
  return [...new Set(nodes[id][2].flatMap(r => isParam(r) ? [] : shown.has(r) ? [r] : readsOf(r, shown)))];
}
// Returns the parts. A part is a box: a result and the activation after it, its inputs, its readers, its column.
function partsOf(shown) {
  const ids = [...shown].sort((p, q) => p - q), readers = new Map(ids.map(id => [id, 0])), of = new Map(), parts = [];
  for (const id of ids) for (const r of readsOf(id, shown)) readers.set(r, readers.get(r) + 1);
  for (const id of ids) {
    const reads = readsOf(id, shown), before = reads.length === 1 ? of.get(reads[0]) : undefined;
    if (before && BENDS.includes(nodes[id][0]) && readers.get(reads[0]) === 1 && before.ids.length === 1
      && nodes[reads[0]][0] !== 'input') {
      before.ids.push(id);
      of.set(id, before);
    } else {
      const part = { ids: [id], reads: [...new Set(reads.map(r => of.get(r)))], readers: [], column: 0, row: 0, number: parts.length };
      parts.push(part);
      of.set(id, part);
    }
  }
  for (const p of parts) for (const r of p.reads) r.readers.push(p);
  return { parts, of };
}

// Assigns rows within a column: a part is below its inputs; one without inputs there is just above its first reader.
function rank(parts) {
  const above = p => p.reads.filter(r => r.column === p.column), below = p => p.readers.filter(r => r.column === p.column);
  for (const p of parts) {
    p.row = Math.max(-1, ...above(p).map(r => r.row)) + 1;
    p.loose = above(p).every(r => r.loose);
  }
  for (const p of [...parts].reverse()) if (p.loose && below(p).length) p.row = Math.max(0, Math.min(...below(p).map(r => r.row)) - 1);
}
// Lays out a U: one column down and one up, with equally many rows for each image height; the middle is below both.
function rankU(parts) {
  const tall = p => nodes[p.ids[0]][1][1] || Infinity, least = Math.min(...parts.map(tall));
  const turn = parts.findIndex(p => tall(p) === least);
  const levels = [...new Set(parts.map(tall).filter(h => h !== Infinity))].sort((a, b) => b - a);
  let row = 0;
  const loss = parts.filter(p => tall(p) === Infinity || (nodes[p.ids[0]][0] === 'input' && p.number > 0));
  for (const h of levels) {
    const here = parts.filter(p => tall(p) === h && !loss.includes(p));
    const left = here.filter(p => p.number < turn), right = here.filter(p => p.number >= turn);
    if (h === least) here.forEach((p, i) => Object.assign(p, { column: 0.5, row: row + i }));
    else {
      const high = Math.max(left.length + 1, right.length + (h === levels[0] ? 1 : 0));
      left.forEach((p, i) => Object.assign(p, { column: 0, row: row + high - 1 - left.length + i }));
      right.forEach((p, i) => Object.assign(p, { column: 1, row: row + high - 1 - i }));
      row += high;
    }
  }
  for (const p of loss) Object.assign(p, { column: p.readers.length ? 0 : 1, row: 0 });
}

const labelOf = id => BENDS.includes(nodes[id][0]) ? nodes[id][0] : (plan.names[id] || nodes[id][0]).replace(/(decoder |linear_|mean_)/, '')
  .replace('rotary cross', 'rotary').replace(/_/g, ' ');
// Returns a label of at most n letters.
const short = (text, n) => text.length <= n ? text : `${text.slice(0, n - 1)}…`;

// Places boxes from left to right, each as near as possible to the middle of its inputs.
function spread(row) {
  for (const p of row) {
    const near = p.reads.filter(r => r.column === p.column && r.x !== undefined);
    const other = p.loose && p.column === 1 && p.reads.length > 0 && p.reads.every(r => r.column === 0); // is placed nearer to it
    p.wish = near.length ? near.reduce((s, r) => s + r.x, 0) / near.length : other ? -100 - p.number / 100 : 0;
  }
  row.sort((p, q) => p.wish - q.wish || p.number - q.number);
  let end = -Infinity;
  for (const p of row) {
    p.x = Math.max(p.wish, end + p.wide / 2);
    end = p.x + p.wide / 2 + BOX.gap;
  }
  const off = row.reduce((s, p) => s + p.x - p.wish, 0) / row.length;
  for (const p of row) p.x -= off;
}
function place(parts) {
  for (const p of parts) {
    p.labels = p.ids.map(labelOf);
    p.wides = p.labels.map((l, i) => Math.max(i ? BOX.bend : BOX.wide, Math.min(l.length, 15) * 6.3 + 10));
    p.wide = p.wides.reduce((s, w) => s + w, 0);
  }
  const columns = [...new Set(parts.map(p => p.column))].sort((a, b) => a - b), whole = columns.filter(c => c === Math.round(c));
  let left = BOX.edge;
  const spans = new Map();
  for (const c of columns) {
    const here = parts.filter(p => p.column === c);
    for (let r = 0; r <= Math.max(...here.map(p => p.row)); r++) {
      const row = here.filter(p => p.row === r);
      if (row.length) spread(row);
    }
    spans.set(c, [Math.min(...here.map(p => p.x - p.wide / 2)), Math.max(...here.map(p => p.x + p.wide / 2))]);
  }
  for (const c of whole) {
    const [a, b] = spans.get(c);
    for (const p of parts.filter(p => p.column === c))
      Object.assign(p, { x: p.x + left - a, gutter: state.model === 'unet' ? 0 : left - 13 });
    const skips = lanes(parts.filter(p => p.column === c), left + b - a + BOX.gap);
    left += b - a + BOX.gap + skips * BOX.lane + (c === whole.at(-1) ? 0 : 26);
  }
  for (const p of parts) {
    if (p.column === 0.5) p.x += (left - BOX.gap) / 2;
    p.y = BOX.edge + p.row * BOX.down;
  }
  return [left + BOX.edge, Math.max(...parts.map(p => p.y)) + BOX.high + BOX.edge];
}
const straight = (p, q) => q.column === p.column && q.row === p.row + 1;
// Gives parts with readers farther below a lane at the right of the column; returns the number of lanes.
function lanes(here, right) {
  const free = [];
  for (const p of here) {
    const far = p.readers.filter(q => q.column === p.column && q.row > p.row + 1 && !clear(here, p, q));
    if (!far.length) continue;
    let lane = free.findIndex(row => row <= p.row);
    if (lane < 0) lane = free.length;
    free[lane] = Math.max(...far.map(q => q.row));
    p.lane = right + lane * BOX.lane;
  }
  return free.length;
}
// Returns true if nothing is between a part and another's row below it, as below v, which attention reads two rows on.
const clear = (here, p, q) => here.every(r => r.row <= p.row || r.row >= q.row || Math.abs(r.x - p.x) > r.wide / 2 + 3);
function edge(p, q, here) {
  const { x, y } = p, top = q.y, low = y + BOX.high, middle = top + BOX.high / 2, side = p.x + p.wide / 2;
  if (p.column === q.column && q.row > p.row && (straight(p, q) || clear(here, p, q)))
    return `M${x},${low}V${top + BOX.high - BOX.down}C${x},${top - 7} ${q.x},${top - 9} ${q.x},${top}`;
  const turn = (lane, way) => `H${lane - 4}q4,0 4,${4 * way}V${middle - 4 * way}`;
  if (p.column === q.column && q.row > p.row)
    return `M${side},${y + BOX.high / 2}${turn(p.lane, 1)}q0,4 -4,4H${q.x + q.wide / 2}`;
  if (p.column === q.column) // up the second side of a U
    return `M${x},${y}L${q.x},${top + BOX.high}`;
  const left = q.x - q.wide / 2;
  if (q.gutter && p.row !== q.row) {
    const way = q.row < p.row ? -1 : 1;
    return `M${side},${y + BOX.high / 2}${turn(q.gutter, way)}q0,${4 * way} 4,${4 * way}H${left}`;
  }
  const half = (left - side) / 2;
  if (half > 0) return `M${side},${y + BOX.high / 2}C${side + half},${y + BOX.high / 2} ${left - half},${middle} ${left},${middle}`;
  return p.row < q.row ? `M${x},${low}C${x},${low + 9} ${q.x},${top - 9} ${q.x},${top}`
    : `M${x},${y}C${x},${y - 9} ${q.x},${top + BOX.high + 9} ${q.x},${top + BOX.high}`;
}

// Redraws the network if the plan computes other results than the last one.
function drawNetwork() {
  const shown = new Set(plan.instructions.filter(i => i[0] === FORWARD).map(i => i[1]));
  const inputs = nodes.map((n, id) => id).filter(id => nodes[id][0] === 'input');
  for (const id of inputs) shown.add(id);
  const key = [...shown].join();
  if (drawing && drawing.key === key) return;
  const made = partsOf(shown), { parts, of } = made;
  if (state.model === 'translator') {
    const second = inputs.find(id => plan.names[id] === 'target');
    for (const p of parts) p.column = p.ids[0] < second ? 0 : 1;
  }
  if (state.model === 'unet') rankU(parts);
  else rank(parts);
  const [wide, high] = place(parts), box = $('network-drawing');
  box.setAttribute('viewBox', `0 0 ${wide} ${high}`);
  box.setAttribute('width', wide);
  box.setAttribute('height', high);
  const put = [svg('defs', {})];
  put[0].innerHTML = `<pattern id="of-freed" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
    <rect width="6" height="6" class="paper"/><rect width="2" height="6" class="stripe"/></pattern>
    <pattern id="of-again" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)">
    <rect width="6" height="6" class="pink"/><rect width="2" height="6" class="pale"/></pattern>
    <marker id="tip" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="6" markerHeight="6" orient="auto"><path d="M0,0L6,3L0,6Z"/></marker>`;
  for (const q of parts) for (const p of q.reads)
    put.push(svg('path', { d: edge(p, q, parts.filter(r => r.column === p.column)), class: 'edge', 'marker-end': 'url(#tip)' }));
  const boxes = new Map();
  for (const p of parts) {
    let x = p.x - p.wide / 2;
    p.ids.forEach((id, i) => {
      const g = svg('g', { id: `tensor-${id}`, role: 'option', 'aria-selected': 'false', class: 'node' });
      g.append(svg('rect', { x, y: p.y, width: p.wides[i], height: BOX.high, rx: 4 }),
        svg('text', { x: x + p.wides[i] / 2, y: p.y + 15, 'text-anchor': 'middle' }, short(p.labels[i], 15)));
      g.onclick = () => choose(id);
      g.onpointerenter = e => e.pointerType === 'mouse' && choose(id);
      boxes.set(id, g);
      put.push(g);
      x += p.wides[i];
    });
  }
  box.replaceChildren(...put);
  drawing = { key, parts, of, boxes, order: [...boxes.keys()], was: new Map() };
  chosen = -1;
  $('network').removeAttribute('aria-activedescendant');
}

// Colours the boxes and keeps the running one in view.
function colourNetwork(stateOf, runs) {
  for (const [id, g] of drawing.boxes) {
    const now = stateOf(id);
    if (drawing.was.get(id) === now) continue;
    drawing.was.set(id, now);
    g.setAttribute('class', `node ${now}`);
    const says = `${plan.names[id] || nodes[id][0]}: ${inWords(id, now)}`;
    g.setAttribute('aria-label', says);
  }
  const g = drawing.boxes.get(runs);
  if (g) intoView(g);
}
function intoView(g) {
  const box = $('network'), { x, y, width, height } = g.getBBox();
  if (y < box.scrollTop + 20 || y + height > box.scrollTop + box.clientHeight - 20)
    box.scrollTop = y - box.clientHeight / 2 + height / 2;
  if (x < box.scrollLeft || x + width > box.scrollLeft + box.clientWidth)
    box.scrollLeft = x - box.clientWidth / 2 + width / 2;
}
