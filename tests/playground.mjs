// node tests/playground.mjs PAGE.html TINY [FOLDER]: the playground in a headless Chromium, beside the native program
// (docs/playground/tiny.c). FOLDER: for screenshots.
import { spawn, execFileSync } from 'node:child_process';
import { writeFileSync, readFileSync, readdirSync, mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { resolve, join, dirname } from 'node:path';
import { pathToFileURL, fileURLToPath } from 'node:url';

const [page, tiny, folder] = process.argv.slice(2);
const profile = mkdtempSync(join(tmpdir(), 'playground-'));
const chrome = spawn(process.env.CHROMIUM || 'chromium', ['--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage',
  `--user-data-dir=${profile}`, '--remote-debugging-pipe', 'about:blank'], { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });

// ---- the browser's own protocol: JSON that ends with a NUL, both ways ----
const waiting = new Map(), faults = [];
let number = 0, rest = '', session;
chrome.stdio[4].on('data', data => {
  const parts = (rest + data).split('\0');
  rest = parts.pop();
  for (const m of parts.map(p => JSON.parse(p))) {
    if (m.id) waiting.get(m.id)(m);
    else if (m.method === 'Runtime.exceptionThrown') faults.push(m.params.exceptionDetails.exception?.description);
    else if (m.method === 'Log.entryAdded' && m.params.entry.level === 'error') faults.push(m.params.entry.text);
    else if (m.method === 'Runtime.consoleAPICalled' && m.params.type === 'error') faults.push(JSON.stringify(m.params.args));
  }
});
const send = (method, params = {}) => new Promise((done, failed) => {
  waiting.set(++number, m => m.error ? failed(new Error(`${method}: ${m.error.message}`)) : done(m.result));
  chrome.stdio[3].write(JSON.stringify({ id: number, method, params, sessionId: session }) + '\0');
});
const run = async expression => {
  const r = await send('Runtime.evaluate', { expression, awaitPromise: true, returnByValue: true });
  if (r.exceptionDetails) throw new Error(`${expression}: ${r.exceptionDetails.exception?.description}`);
  return r.result.value;
};
const until = async (expression, what) => {
  for (let i = 0; i < 3000; i++) {
    if (await run(expression)) return;
    await new Promise(done => setTimeout(done, 50));
  }
  throw new Error(`${what || expression}: not within 150 s`);
};
const open = async hash => {
  await send('Page.navigate', { url: 'about:blank' });
  await send('Page.navigate', { url: pathToFileURL(resolve(page)).href + hash });
  await until('document.readyState === "complete" && typeof plan !== "undefined" && plan !== null', `a plan of ${hash}`);
};
const shot = async (name, width, height, dark) => {
  await send('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: dark ? 'dark' : 'light' }] });
  await send('Emulation.setDeviceMetricsOverride', { width, height, deviceScaleFactor: 1, mobile: width < 600 });
  await new Promise(done => setTimeout(done, 200));
  const wide = await run('document.documentElement.scrollWidth');
  check(wide <= width, `${name}: ${wide} pixels wide in a window of ${width}`);
  const all = await run('document.documentElement.outerHTML.length > 0 && [...document.querySelectorAll("main > section")].flatMap(s => [...s.querySelectorAll("*")])'
    + '.filter(e => !e.closest("#network") && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(e => e.tagName + e.id).join()');
  check(all === '', `${name}: beyond the right edge: ${all}`);
  if (!folder) return;
  const { data } = await send('Page.captureScreenshot', { captureBeyondViewport: true });
  writeFileSync(join(folder, `${name}.png`), Buffer.from(data, 'base64'));
};

let passed = 0, failed = 0;
function check(good, what) {
  if (good) passed++;
  else failed++, console.log(`playground: ${what}`);
}

// ---- what is tested ----
async function presets() {
  for (const model of ['gpt', 'chain', 'mlp', 'translator', 'unet']) {
    await open(`#model=${model}`);
    await drawn(model);
    const [sizes, words] = await run(`[MODELS[state.model].sizes.map(([n]) => n), [...document.querySelectorAll('#model-words button')].map(b => b.textContent)]`);
    check(sizes.every(n => words.includes(n)) && words.includes('examples a step'), `${model}: its words are ${words}`);
    check(/names such as/.test(words.at(-1)) && await run(`plan.names.includes(MODELS[state.model].name)`), `${model}: ${words.at(-1)}`);
    const [points, arena, text] = await run('[frontier.points.length, plan.arena, document.getElementById("says").textContent]');
    check(points >= 2 && arena > 0, `${model}: ${points} points, ${arena} bytes`);
    check(/bytes|kB|MB/.test(text), `${model} says: ${text}`);
  }
}

// The drawing of the network has what the plan computes, each box in its place, coloured as the cells; and what is held lies
// in the arena: at each instruction each buffer of results holds one result, and each result held is in one.
async function drawn(what) {
  check(await run(`plan.instructions.every((now, at) => {
    const live = plan.buffers.map((b, i) => b[5] === 0 && b[0] <= at && at <= b[1] ? i : -1).filter(i => i >= 0);
    const held = holds.flatMap(h => h.spans.filter(([s, e]) => s <= at && at <= e).map(s => s[2])).sort((a, b) => a - b);
    return String(held) === String(live.sort((a, b) => a - b));
  })`), `${what}: what is held is what lies in the arena`);
  const [boxes, named, inside, apart, alike] = await run(`(() => {
    const all = [...document.querySelectorAll('#network .node')], box = e => e.getBBox();
    const rects = all.map(g => box(g.querySelector('rect'))), texts = all.map(g => box(g.querySelector('text')));
    const over = (a, b) => Math.min(a.x + a.width, b.x + b.width) - Math.max(a.x, b.x) > 1 && Math.min(a.y + a.height, b.y + b.height) - Math.max(a.y, b.y) > 1;
    const inputs = nodes.filter(n => n[0] === 'input').length, [W, H] = document.getElementById('network-drawing').getAttribute('viewBox').split(' ').slice(2);
    let same = true;
    const was = state.at;
    for (const at of [0, 0.2, 0.45, 0.6, 0.8, 1].map(f => Math.floor(f * (plan.instructions.length - 1)))) {
      go(at);
      const cells = document.getElementById('cells').children;
      same = same && holds.every((h, i) => drawing.boxes.get(h.id).getAttribute('class') === 'node ' + cells[i].className);
    }
    go(was);
    return [all.length === holds.length + inputs, all.every(g => g.textContent.length > 0 && /: /.test(g.getAttribute('aria-label'))),
      rects.every((r, i) => texts[i].x >= r.x && texts[i].x + texts[i].width <= r.x + r.width && r.x >= 0 && r.x + r.width <= W && r.y + r.height <= H),
      rects.every((a, i) => rects.every((b, k) => k <= i || !over(a, b))), same];
  })()`);
  check(boxes && named && inside && apart && alike, `${what}: boxes ${boxes}, named ${named}, within ${inside}, apart ${apart}, as the cells ${alike}`);
}

// What is pointed at by mouse, finger or keys is named; the arena's larger boxes have their names in them.
async function pointed() {
  await open('#model=chain&layers=6&rows=64&budget=1&mode=memory-poor');
  const says = () => run(`document.getElementById('chosen-says').textContent`), all = await run('plan.buffers.length');
  check(await run('named') >= 3, `${await run('named')} boxes have their names in them`);
  await run(`drawing.boxes.get(holds[3].id).dispatchEvent(new MouseEvent('click'))`);
  check(/^tanh 1: tanh, 64 × 32, 8.19.kB. It reads layer 1. It is held (at|from) instruction .* Now: /.test(await says()), `a box of the drawing: ${await says()}`);
  for (const touch of [false, true]) { // in the middle of the largest box of results, and beside a thin one
    const [x, y, name] = await run(`(() => { const r = document.getElementById('arena').getBoundingClientRect(); scrollTo(0, r.top + scrollY - 100);
      const at = document.getElementById('arena').getBoundingClientRect(); let best = 0;
      plan.buffers.forEach((b, i) => { const size = k => (plan.buffers[k][1] - plan.buffers[k][0] + 1) * plan.buffers[k][3]; if (b[5] === ${touch ? 2 : 0} && (plan.buffers[best][5] !== b[5] || size(i) > size(best))) best = i; });
      const p = placeOf(best, at.width, at.height); return [at.left + p.x + p.wide / 2, at.top + p.y + p.high / 2, nameOf(best)]; })()`);
    if (touch) {
      await send('Input.dispatchTouchEvent', { type: 'touchStart', touchPoints: [{ x, y }] });
      await send('Input.dispatchTouchEvent', { type: 'touchEnd', touchPoints: [] });
    } else await send('Input.dispatchMouseEvent', { type: 'mouseMoved', x, y });
    const kind = touch ? 'gradient' : 'result';
    await until(`document.getElementById('chosen-says').textContent.includes(${JSON.stringify(kind)})`, `${touch ? 'a tap on' : 'pointing at'} ${name}: ${await says()}`);
    check((await says()).includes(name) && /kB at address [\d,]+, (at|from) instruction/.test(await says()), `the arena's box of ${name}: ${await says()}`);
  }
  await run(`document.getElementById('network').focus()`);
  const press = key => send('Input.dispatchKeyEvent', { type: 'keyDown', key, code: key, windowsVirtualKeyCode: { Home: 36, Enter: 13, ArrowDown: 40, ArrowUp: 38, ArrowRight: 39 }[key] });
  for (const key of ['Home', 'ArrowDown', 'ArrowDown', 'Enter']) await press(key);
  check(await run('chosen === holds[1].id && state.at === holds[1].first') && await run(`document.getElementById('network').getAttribute('aria-activedescendant') === 'tensor-' + chosen
    && document.querySelectorAll('#network [aria-selected=true]').length === 1`), 'keys in the drawing');
  await run(`document.getElementById('arena').focus()`);
  for (const key of ['ArrowRight', 'ArrowUp', 'ArrowUp']) await press(key);
  check(await run('state.at === holds[1].first + 1 && box === inUse()[1]') && / at address /.test(await says()), `keys in the arena: ${await says()}`);
  check(all === await run('plan.buffers.length'), 'pointing plans nothing');
}

// Lessons' links: each state plans, trains where it is about training, and is shown at the part that it is about.
async function lessons() {
  const course = join(dirname(fileURLToPath(import.meta.url)), '../docs/course');
  const links = readdirSync(course).filter(f => /^\d.*\.md$/.test(f)).sort().flatMap(f =>
    [...readFileSync(join(course, f), 'utf8').matchAll(/playground\.html(#[^)\s]+)\)/g)].map(m => [f, m[1]]));
  const saved = [];
  for (const [file, hash] of links) {
    const given = new URLSearchParams(hash.slice(1));
    await open(hash);
    await until('state.see === "" && runs.every(r => r.plan)', `${file}: ${hash}`);
    const [errors, saves, top, kept] = await run(`[[...document.querySelectorAll('.error')].map(e => e.textContent).filter(t => t), saves(),
      document.getElementById('h-${given.get('see')}')?.getBoundingClientRect().top, ${JSON.stringify([...given].filter(([k]) => k in { model: 1, mode: 1, at: 1, rows: 1 }))}
        .every(([k, v]) => String(state[k]) === v) && ${JSON.stringify([...given])}.every(([k, v]) => !(k in state.sizes) || String(state.sizes[k]) === v)]`);
    check(errors.length === 0, `${file}, ${hash}: ${errors}`);
    check(kept, `${file}, ${hash}: not what is said`);
    check(given.has('see') && top > -5 && top < 700, `${file}, ${hash}: the part begins at ${top}`);
    if (file.startsWith('3')) saved.push(saves), await drawn(hash);
  }
  for (let n = 1; n <= 6; n++) check(links.some(([f]) => f.startsWith(n)), `lesson ${n} links the page`);
  check(saved.filter(s => s > 0.4).length >= 3, `lesson 3: of the bytes can be saved ${saved}`);
  const presets = await run('Object.keys(PRESETS).map(k => { const p = preset(k); return new URLSearchParams({ model: p.model, ...p.sizes, rows: p.rows }).toString(); })');
  check(presets.length === 3 && links.filter(([f]) => f.startsWith('3')).filter(([, h]) => presets.some(p => [...new URLSearchParams(h.slice(1))]
    .every(([k, v]) => k === 'see' || new URLSearchParams(p).get(k) === v) && /layers|image|blocks/.test(h))).length === 3, 'the presets of lesson 3 are its links');
}

// One is, two are; numbers as people write them.
async function grammar() {
  const wrong = /\b1 (results|bytes|steps|points|instructions|examples|\w+ are|are|were)\b|\b[02-9]\d* (result|byte|step|point|instruction) |\d{5,} (bytes|results|steps)|e\+\d|NaN|undefined|\[object|  /;
  for (const hash of ['#model=chain&layers=2&rows=8&width=4', '#model=mlp&layers=1&inputs=1&width=1&classes=2&rows=1&learn=points']) {
    await open(hash);
    await until('runs.every(r => r.plan)', hash);
    const texts = await run(`(() => { const all = new Set(), tell = () => ['model-says', 'says', 'method-says', 'at-says', 'chosen-says', 'frontier-says', 'a-says', 'a-again', 'b-again',
      'points-says'].forEach(id => all.add(document.getElementById(id).textContent));
      for (let at = 0; at < plan.instructions.length; at++) { go(at); chooseBox(at % plan.buffers.length); tell(); choose(drawing.order[at % drawing.order.length]); tell(); }
      return [...all]; })()`);
    for (const text of texts) check(!wrong.test(text.replace(/\u00a0/g, ' ')), `grammar: ${text}`);
    check(texts.some(t => /\b1 result is held/.test(t)) && texts.some(t => /[02-9] results are held/.test(t)), `${hash}: one result is, two are`);
  }
  const said = await run(`[bytes(1), bytes(2), bytes(999), bytes(999499), bytes(999600), bytes(1e6), bytes(1234567), apart(1234567, 1234568), percent(0.0001), percent(0.0996), percent(0),
    are(1, 'result'), are(2, 'result'), figure(1234567), againInWords({ again: ['tanh 0'], results: 3 }), againInWords({ again: ['a', 'b', 'a'], results: 3 })].join('; ')`);
  check(said.replace(/\u00a0/g, ' ') === '1 byte; 2 bytes; 999 bytes; 999 kB; 1.00 MB; 1.00 MB; 1.23 MB; 1,234,567 bytes; less than 0.1 %; 10 %; 0.0 %; 1 result is; 2 results are; '
    + '1,234,567; Of 3 results 1 is let go and computed again: tanh 0.; Of 3 results 2 are let go and computed again: a (twice), b.', `numbers: ${said}`);
}

// Colours that stand for different things differ, for those who see some colours alike, too (Machado and others 2009, whole
// deficiency); text stands out from what is behind it.
async function colours() {
  const seen = { all: [[1, 0, 0], [0, 1, 0], [0, 0, 1]], protanopia: [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    deuteranopia: [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    tritanopia: [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]] };
  const lab = ([r, g, b]) => {
    const f = t => t > 0.008856 ? Math.cbrt(t) : 7.787 * t + 16 / 116;
    const [x, y, z] = [(0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047, 0.2126 * r + 0.7152 * g + 0.0722 * b, (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883].map(f);
    return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
  };
  const linear = c => [1, 3, 5].map(i => parseInt(c.slice(i, i + 2), 16) / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const apart = (a, b, m) => Math.hypot(...[a, b].map(linear).map(c => lab(m.map(row => Math.min(1, Math.max(0, row.reduce((s, w, i) => s + w * c[i], 0))))))
    .reduce((p, q) => p.map((v, i) => v - q[i])));
  await open('#model=gpt&at=120');
  for (const dark of [false, true]) {
    const mode = dark ? 'dark' : 'light';
    await send('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: mode }] });
    for (const [legend, names, least, leastSeen] of [['arena', ['blue', 'sky', 'orange', 'red', 'grey', 'wash'], 25, 18], ['states', ['blue', 'green', 'wash'], 25, 12]]) {
      const is = Object.fromEntries(await run(`${JSON.stringify(names)}.map(n => [n, getComputedStyle(document.documentElement).getPropertyValue('--' + n).trim()])`));
      for (const [who, matrix] of Object.entries(seen)) names.forEach((a, i) => names.slice(i + 1).forEach(b => {
        const d = apart(is[a], is[b], matrix);
        check(d >= (who === 'all' ? least : leastSeen), `${mode}, ${legend}: ${a} ${is[a]} and ${b} ${is[b]} are alike (${who}): ${d.toFixed(0)}`);
      }));
    }
    const low = await run(`(() => {
      const rgb = c => c.match(/[\\d.]+/g).map(Number), lum = c => { const [r, g, b] = c.slice(0, 3).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const ratio = (a, b) => { const [p, q] = [lum(a), lum(b)].sort((x, y) => y - x); return (p + 0.05) / (q + 0.05); };
      const behind = e => { for (let p = e; p; p = p.parentElement) { const c = rgb(getComputedStyle(p).backgroundColor); if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
      const all = [], paint = n => { const c = getComputedStyle(document.documentElement).getPropertyValue('--' + n).trim(); return [1, 3, 5].map(i => parseInt(c.slice(i, i + 2), 16)); };
      for (const e of document.querySelectorAll('body *')) {
        if (e.closest('svg') || e.disabled || !e.checkVisibility() || ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
        const r = ratio(rgb(getComputedStyle(e).color), behind(e));
        if (r < 4.5) all.push(e.tagName + ' ' + e.textContent.slice(0, 20) + ' ' + r.toFixed(1));
      }
      for (const t of document.querySelectorAll('svg text')) { // on a box, or on the drawing's ground
        const box = t.previousElementSibling?.tagName === 'rect' && t.closest('.node') && getComputedStyle(t.previousElementSibling).fill;
        const on = !box ? [behind(t.closest('svg').parentElement.id === 'network' ? t.closest('#network') : t.closest('svg'))] : box.includes('freed') ? [paint('paper'), paint('line')]
          : box.includes('again') ? [paint('pink'), paint('pale')] : [rgb(box)];
        for (const c of on) { const r = ratio(rgb(getComputedStyle(t).fill), c); if (r < 4.5) all.push('svg ' + t.textContent + ' ' + r.toFixed(1)); }
      }
      for (const n of ['blue', 'sky', 'orange', 'red', 'grey']) { const c = paint(n), r = ratio(rgb(onColor(getComputedStyle(document.documentElement).getPropertyValue('--' + n).trim()) === '#000000' ? '0 0 0' : '255 255 255'), c);
        if (r < 4.5) all.push('arena, on ' + n + ' ' + r.toFixed(1)); }
      return all; })()`);
    check(low.length === 0, `${mode}: text that hardly stands out: ${low}`);
  }
}

// The grey region says what it is, in the drawing and below it; both of its parts where they differ.
async function grey() {
  for (const [width, hash] of [[320, '#model=chain'], [1280, '#model=gpt']]) {
    await send('Emulation.setDeviceMetricsOverride', { width, height: 800, deviceScaleFactor: 1, mobile: width < 600 });
    await open(hash);
    const [says, within, proven, least] = await run(`(() => { const t = document.querySelector('#frontier .grey-says').getBoundingClientRect(), box = document.getElementById('frontier').getBoundingClientRect();
      return [document.querySelector('#frontier .grey-says').textContent + '; ' + document.getElementById('frontier-says').textContent, t.left >= box.left && t.right <= box.right && t.top >= box.top && t.bottom <= box.bottom,
        frontier.proven_bytes, frontier.points[0].bytes]; })()`);
    check(/^no plan fits; /.test(says) && /Grey, at the left: .*proven that no plan fits/.test(says) && /none was found/.test(says) === proven < least && within, `${width}: ${says}, ${within}`);
  }
  await send('Emulation.clearDeviceMetricsOverride');
}

async function slider() {
  await open('#model=gpt');
  const before = await run('plan.bytes');
  const took = await run(`(async () => {
    const slider = document.getElementById('budget'), start = performance.now(), was = plan;
    slider.value = 200;
    slider.dispatchEvent(new Event('input'));
    while (plan === was) await new Promise(done => setTimeout(done, 1));
    return performance.now() - start;
  })()`);
  check(await run('plan.bytes') < before && await run('plan.bytes <= state.budget'), 'the slider plans again');
  console.log(`a drag: ${took.toFixed(0)} ms`);
  await run(`document.getElementById('bytes').value = 1000; document.getElementById('bytes').dispatchEvent(new Event('change'))`);
  await until('plan === null', 'too few bytes');
  check(/too few/.test(await run('document.getElementById("says").textContent')), 'says what is too few');
}

async function address() {
  await open('#model=mlp&layers=5&width=48&rows=100&budget=400000&at=7');
  const now = await run('[state.model, state.sizes.layers, state.sizes.width, state.rows, state.budget, state.at, location.hash]');
  check(now[0] === 'mlp' && now[1] === 5 && now[2] === 48 && now[3] === 100 && now[4] === 400000 && now[5] === 7, `restored: ${now}`);
  await run(`document.getElementById('next').click()`);
  check(await run('state.at') === 8, 'a step on');
  await until('/at=8/.test(location.hash)', 'a step on is in the address');
  await run(`(() => { const preset = document.getElementById('preset'); preset.value = 'unet'; preset.onchange(); })()`);
  await until('state.model === "unet" && plan !== null && /model=unet/.test(location.hash)', 'another preset');
  await run('history.back()');
  await until('document.readyState === "complete" && typeof plan !== "undefined" && state.model === "mlp" && plan !== null', 'Back');
  check(await run('state.sizes.layers') === 5 && await run('state.budget') === 400000, 'Back restores the network before');
}

// What explains: words where they stand, the tour, what a method or a switch does not do.
async function explains() {
  await open('#model=gpt');
  const words = await run(`(() => { const all = [...document.querySelectorAll('button.word')]; all.forEach(b => b.click());
    return all.map(b => b.getAttribute('aria-expanded') === 'true' && b.closest('p, figcaption').querySelector('.explained:not([hidden])')
      .textContent.length > 20); })()`);
  check(words.length >= 8 && words.every(Boolean), `words: ${words}`);
  await run(`document.getElementById('tour-begin').click()`);
  for (const [n, what] of ['plan.overhead === 0', 'plan.overhead > 0', 'playing && plan.instructions.some(i => i[4])',
    'runs[0].losses.length > 1'].entries()) {
    await until(what, `the tour's part ${n + 1}`);
    check(await run(`document.getElementById('tour-title').textContent`).then(t => t.startsWith(`${n + 1} of 4`)), `the tour's title ${n + 1}`);
    await run(`document.getElementById('tour-next').click()`);
  }
  check(await run(`document.getElementById('tour').hidden`), 'the tour ends');
  await run('learn(false)');
  await run(`(() => { const mode = document.getElementById('mode'); mode.value = 2; mode.onchange(); })()`);
  await until(`/does not look at the budget/.test(document.getElementById('method-says').textContent)`, 'a method says so');
  await run(`document.getElementById('fault').click()`);
  await until(`/makes no difference/.test(document.getElementById('fault-says').textContent)`, 'the fault without unequal lengths');
}

// What is pressed while steps run: no step of an older run gets into the new one, none is taken twice.
async function races() {
  await open('#learn=gpt');
  await until('ready && runs.every(r => r.plan && !r.plan.error)', 'both plans');
  await run(`document.getElementById('run').click()`);
  await until('runs[0].losses.length >= 2', 'two steps');
  for (const button of ['run', 'run', 'run', 'run', 'run', 'run', 'reset']) await run(`document.getElementById('${button}').click()`);
  await run('ready');
  check(await run('runs.every(r => r.losses.length === 0 && r.hash === "")'), 'nothing of the run before');
  await run('(async () => { await steps(); await steps(); })()');
  const [steps, hash] = await run('[runs.map(r => r.losses.length), runs[0].hash]');
  await open('#learn=gpt');
  await until('ready && runs.every(r => r.plan && !r.plan.error)', 'both plans');
  await run('(async () => { await steps(); await steps(); })()');
  check(String(steps) === '2,2' && await run('runs[0].hash') === hash, `after two steps: ${steps}, ${hash}`);
  for (const address of ['#model=constructor&mode=toString&budget=-1&at=NaN', '#model=__proto__&learn=points&points=1,2;x,y,z;;9999,0,0']) {
    await open(address);
    check(await run('state.model === "gpt" && state.mode === "optimal"'), address);
  }
  check(await run('points.length') === 0, 'points that are none');
}

// Points by keys, and what is wrong with what is given.
async function keys() {
  await open('#learn=points');
  await until('ready && runs.every(r => r.plan)', 'points');
  const before = await run('points.length');
  await run(`(() => { const box = document.getElementById('points'), press = key => box.dispatchEvent(new KeyboardEvent('keydown', { key }));
    document.getElementById('class').value = 1; box.focus(); ['ArrowRight', 'ArrowUp', 'ArrowUp', 'Enter'].forEach(press); })()`);
  const after = await run('points');
  check(after.length === before + 1 && String(after[before]) === '50,100,1', `Enter adds a point: ${after[before]}`);
  await run('ready');
  await run(`document.getElementById('clear').click()`);
  await until(`/two points or more/.test(document.getElementById('a-says').textContent)`, 'no points');
  await open('#learn=gpt&t-heads=3');
  await until(`/whole, even number/.test(document.getElementById('a-says').textContent)`, 'three heads');
}

// Both runs, and what the page's command prints, have the same weights.
async function trains(hash, steps, what) {
  await open(hash);
  await until('runs.every(r => r.plan && !r.plan.error)', `${what}: both plans`);
  const [a, b] = await run('runs.map(r => r.plan.bytes)');
  check(b < a, `${what}: B's ${b} bytes are fewer than A's ${a}`);
  await run(`(async () => { for (let i = 0; i < ${steps}; i++) await steps(); })()`);
  const [one, two] = await run('runs.map(r => r.hash)'), data = join(profile, 'data.txt');
  writeFileSync(data, await run('learned()'));
  const native = (await run('runs.map(command)')).map(line => {
    const of = line.replace('data.txt', data).split(' ').slice(1);
    return execFileSync(tiny, of).toString().match(/weights ([0-9a-f]{16})/)[1];
  });
  check(one === native[0] && two === native[1], `${what}: weights ${one} and ${two}, natively ${native}`);
  return [one, two, await run('document.getElementById("same").textContent')];
}

async function training() {
  let [a, b, says] = await trains('#learn=gpt', 6, 'GPT');
  check(a === b && /equal/.test(says), `GPT: ${a}, ${b}: ${says}`);
  [a, b, says] = await trains('#learn=points', 6, 'points');
  check(a === b && /equal/.test(says), `points: ${a}, ${b}: ${says}`);
  const [again, tells, other] = await run(`[runs[1].plan.again, document.getElementById('b-again').textContent, document.getElementById('a-again').textContent]`);
  check(again.length > 0 && again.every(name => tells.includes(name)) && /computed again/.test(tells) && /stay/.test(other), `points: B computes again ${again}: ${tells}`);
  [a, b] = await trains('#learn=gpt&unequal=1', 3, 'unequal lengths');
  check(a === b, `unequal lengths: ${a}, ${b}`);
  [a, b, says] = await trains('#learn=gpt&unequal=1&fault=1', 3, 'the fault');
  check(a !== b && /differ/.test(says), `the fault: ${a}, ${b}: ${says}`);
  await until('/fault=1/.test(location.hash)', 'the fault is in the address');
}

let status = 1;
try {
  const { targetId } = await send('Target.createTarget', { url: 'about:blank' });
  ({ sessionId: session } = await send('Target.attachToTarget', { targetId, flatten: true }));
  for (const domain of ['Page', 'Runtime', 'Log']) await send(`${domain}.enable`);
  check(statSync(page).size < 1.5e6, 'the page has less than 1.5 MB');
  await presets();
  await pointed();
  await lessons();
  await grammar();
  await colours();
  await grey();
  await slider();
  await address();
  await training();
  await explains();
  await keys();
  await races();
  await open('#model=gpt&at=80');
  await run('(async () => { for (let i = 0; i < 11; i++) await steps(); })()');
  for (const width of [320, 390, 1280]) for (const dark of [false, true]) await shot(`${width}-${dark ? 'dark' : 'light'}`, width, 800, dark);
  await run('document.querySelectorAll("button.word").forEach(b => b.click())');
  await shot('320-words', 320, 800, false);
  for (const fault of faults) check(false, `console: ${fault}`);
  status = failed > 0 ? 1 : 0;
} catch (error) {
  failed++;
  console.log(`playground: ${error.message}`, faults.join('; '));
}
console.log(`playground: ${passed} passed, ${failed} failed`);
chrome.kill('SIGKILL');
chrome.on('exit', () => {
  rmSync(profile, { recursive: true, force: true });
  process.exit(status);
});
