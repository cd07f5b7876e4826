// node tests/playground.mjs PAGE.html TINY RELAY FITS [FOLDER]: tests the playground in a headless Chromium, and compares its
// results with those of the native programs TINY (docs/playground/tiny.c), RELAY (docs/course/relay.c) and FITS
// (docs/playground/fits.c). FOLDER: a folder for screenshots.
import { execFileSync } from 'node:child_process';
import { writeFileSync, readFileSync, readdirSync, statSync } from 'node:fs';
import { resolve, join, dirname } from 'node:path';
import { pathToFileURL, fileURLToPath } from 'node:url';
import { tested } from './browser.mjs';

const [page, tiny, relay, fits, folder] = process.argv.slice(2);
let profile, send, run, look, check; // functions of the browser (see browser.mjs)
const inPage = (f, ...given) => run(`(${f})(...${JSON.stringify(given)})`); // runs a function in the page
const until = async (expression, what) => {
  for (let i = 0; i < 3000; i++) {
    const there = await run(expression).catch(error => { // fails while one page is replaced by another
      if (!error.message.includes('navigated or closed')) throw error;
    });
    if (there) return;
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
  await look(width, height, dark);
  await new Promise(done => setTimeout(done, 200));
  const wide = await run('document.documentElement.scrollWidth');
  check(wide <= width, `${name}: ${wide} pixels wide in a window of ${width}`);
  const all = await inPage(() => [...document.querySelectorAll('main > section *')].filter(e => !e.closest('#network')
    && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(e => e.tagName + e.id).join());
  check(all === '', `${name}: beyond the right edge: ${all}`);
  if (!folder) return;
  const { data } = await send('Page.captureScreenshot', { captureBeyondViewport: true });
  writeFileSync(join(folder, `${name}.png`), Buffer.from(data, 'base64'));
};

// ---- the tests ----
async function presets() {
  for (const model of ['gpt', 'chain', 'mlp', 'translator', 'unet']) {
    await open(`#model=${model}`);
    await drawn(model);
    const [sizes, words] = await inPage(() => [MODELS[state.model].sizes.map(([n]) => n),
      [...document.querySelectorAll('#model-words button')].map(b => b.textContent)]);
    check(sizes.every(n => words.includes(n)) && words.includes('examples a step'), `${model}: its words are ${words}`);
    check(/names such as/.test(words.at(-1)) && await run(`plan.names.includes(MODELS[state.model].name)`), `${model}: ${words.at(-1)}`);
    const [points, arena, text] = await run('[frontier.points.length, plan.arena, document.getElementById("says").textContent]');
    check(points >= 2 && arena > 0, `${model}: ${points} points, ${arena} bytes`);
    check(/bytes|kB|MB/.test(text), `${model} says: ${text}`);
  }
}

// Tests the drawing of the network: it has a box for each result that the plan computes, in the right place and with the
// colour of the table's cell. Results that are held are in the arena: at each instruction, each buffer of results holds one
// result, and each result that is held is in one buffer.
async function drawn(what) {
  check(await inPage(() => plan.instructions.every((now, at) => {
    const live = plan.buffers.flatMap((b, i) => b[5] === 0 && b[0] <= at && at <= b[1] ? [i] : []);
    const held = holds.flatMap(h => h.spans.filter(([s, e]) => s <= at && at <= e).map(s => s[2]));
    return String(held.sort((a, b) => a - b)) === String(live.sort((a, b) => a - b));
  })), `${what}: what is held is what lies in the arena`);
  const good = await inPage(() => {
    const all = [...document.querySelectorAll('#network .node')], [W, H] = $('network-drawing').getAttribute('viewBox').split(' ').slice(2);
    const rects = all.map(g => g.querySelector('rect').getBBox()), texts = all.map(g => g.querySelector('text').getBBox());
    const common = (a, b, at, size) => Math.min(a[at] + a[size], b[at] + b[size]) - Math.max(a[at], b[at]);
    const over = (a, b) => common(a, b, 'x', 'width') > 1 && common(a, b, 'y', 'height') > 1;
    const within = (a, b) => a.x >= b.x && a.x + a.width <= b.x + b.width;
    const frame = { x: 0, width: Number(W) }, was = state.at;
    const coloured = [0, 0.2, 0.45, 0.6, 0.8, 1].every(part => {
      go(Math.floor(part * (plan.instructions.length - 1)));
      return holds.every((h, i) => drawing.boxes.get(h.id).getAttribute('class') === `node ${$('cells').children[i].className}`);
    });
    go(was);
    return { all: all.length === holds.length + nodes.filter(n => n[0] === 'input').length,
      named: all.every(g => g.textContent.length > 0 && /: /.test(g.getAttribute('aria-label'))),
      within: rects.every((r, i) => within(texts[i], r) && within(r, frame) && r.y + r.height <= H),
      apart: rects.every((a, i) => rects.every((b, k) => k <= i || !over(a, b))), coloured };
  });
  check(Object.values(good).every(Boolean), `${what}, the drawing: ${JSON.stringify(good)}`);
}

// Tests that a box to which the user points by mouse, finger or keys is named below the drawing, and that the larger boxes
// of the arena contain their names.
async function pointed() {
  await open('#model=chain&layers=6&rows=64&budget=1&mode=memory-poor');
  const says = () => run(`$('chosen-says').textContent`);
  check(await run('named') >= 3, `${await run('named')} boxes have their names in them`);
  await run(`drawing.boxes.get(holds[3].id).dispatchEvent(new MouseEvent('click'))`);
  check(/^tanh 1: tanh, 64 × 32, 8.19.kB. It reads layer 1. It is held (at|from) instruction .* Now: /.test(await says()),
    `a box of the drawing: ${await says()}`);
  for (const [kind, word] of [[0, 'result'], [2, 'gradient']]) { // the largest box of results by the mouse, of gradients by a finger
    const [x, y, name] = await inPage(kind => {
      scrollTo(0, $('arena').getBoundingClientRect().top + scrollY - 100);
      const size = ([from, to, , bytes]) => (to - from + 1) * bytes, at = $('arena').getBoundingClientRect();
      const largest = plan.buffers.filter(b => b[5] === kind).sort((a, b) => size(b) - size(a))[0], i = plan.buffers.indexOf(largest);
      const p = placeOf(i, at.width, at.height);
      return [at.left + p.x + p.wide / 2, at.top + p.y + p.high / 2, nameOf(i)];
    }, kind);
    if (kind) {
      await send('Input.dispatchTouchEvent', { type: 'touchStart', touchPoints: [{ x, y }] });
      await send('Input.dispatchTouchEvent', { type: 'touchEnd', touchPoints: [] });
    } else await send('Input.dispatchMouseEvent', { type: 'mouseMoved', x, y });
    await until(`$('chosen-says').textContent.includes('${word}')`, `${kind ? 'a tap on' : 'pointing at'} ${name}`);
    check((await says()).includes(name) && /kB at address [\d,]+, (at|from) instruction/.test(await says()),
      `the arena's box of ${name}: ${await says()}`);
  }
  const codes = { Home: 36, Enter: 13, ArrowDown: 40, ArrowUp: 38, ArrowRight: 39 };
  const press = key => send('Input.dispatchKeyEvent', { type: 'keyDown', key, code: key, windowsVirtualKeyCode: codes[key] });
  await run(`$('network').focus()`);
  for (const key of ['Home', 'ArrowDown', 'ArrowDown', 'Enter']) await press(key);
  check(await inPage(() => chosen === holds[1].id && state.at === holds[1].first
    && $('network').getAttribute('aria-activedescendant') === `tensor-${chosen}`
    && document.querySelectorAll('#network [aria-selected=true]').length === 1), 'keys in the drawing');
  await run(`$('arena').focus()`);
  for (const key of ['ArrowRight', 'ArrowUp', 'ArrowUp']) await press(key);
  check(await run('state.at === holds[1].first + 1 && box === inUse()[1]') && / at address /.test(await says()),
    `keys in the arena: ${await says()}`);
}

// Tests the links of the course's lessons: each linked state has a plan, opens its trainings, and shows the part of the page
// that the lesson is about.
async function lessons() {
  const course = join(dirname(fileURLToPath(import.meta.url)), '../docs/course');
  const links = readdirSync(course).filter(f => /^\d.*\.md$/.test(f)).sort().flatMap(f =>
    [...readFileSync(join(course, f), 'utf8').matchAll(/playground\.html(#[^)\s]+)\)/g)].map(m => [f, m[1]]));
  const saved = [];
  for (const [file, hash] of links) {
    const given = [...new URLSearchParams(hash.slice(1))], part = given.find(([k]) => k === 'see');
    await open(hash);
    await until('state.see === "" && runs.every(r => r.plan)', `${file}: ${hash}`);
    const [errors, saves, top, kept] = await inPage((given, part) => [
      [...document.querySelectorAll('.error')].map(e => e.textContent).filter(t => t), saves(),
      part ? $(`h-${part}`).getBoundingClientRect().top : -1,
      given.every(([k, v]) => k === 'see' || String(k.startsWith('t-') ? training[k.slice(2)] : state[k] ?? state.sizes[k]
        ?? (k === 'points' ? v : k.includes('-') ? training[k[0]][k.slice(2)] : training[k])) === v)], given, part?.[1]);
    check(errors.length === 0, `${file}, ${hash}: ${errors}`);
    check(kept, `${file}, ${hash}: not what is said`);
    check(top > -5 && top < 700, `${file}, ${hash}: the part begins at ${top}`);
    if (!file.startsWith('3')) continue;
    saved.push(saves);
    await drawn(hash);
  }
  for (let n = 1; n <= 6; n++) check(links.some(([f]) => f.startsWith(n)), `lesson ${n} links the page`);
  check(saved.filter(s => s > 0.4).length >= 3, `lesson 3: of the bytes can be saved ${saved}`);
  // lesson 3 links the presets that are named after it
  const presets = await inPage(() => Object.keys(PRESETS).map(k => ({ ...preset(k).sizes, model: preset(k).model, rows: preset(k).rows })));
  const third = links.filter(([f]) => f.startsWith('3')).map(([, hash]) => [...new URLSearchParams(hash.slice(1))]);
  for (const p of presets)
    check(third.some(of => of.length > 2 && of.every(([k, v]) => k === 'see' || String(p[k]) === v)), `lesson 3 links ${JSON.stringify(p)}`);
}

// Tests the grammar of texts: singular and plural, and numbers as people write them.
async function grammar() {
  const plain = text => text.replace(/\u00a0/g, ' ');
  const wrong = [/\b1 (results|bytes|steps|points|instructions|examples|\w+ are|are|were)\b/, /\d{5,} (bytes|results|steps)/,
    /\b[02-9]\d* (result|byte|step|point|instruction) /, /e\+\d|NaN|undefined|\[object| {2}/];
  for (const hash of ['#model=chain&layers=2&rows=8&width=4', '#model=mlp&layers=1&inputs=1&width=1&classes=2&rows=1&learn=points']) {
    await open(hash);
    await until('runs.every(r => r.plan)', hash);
    const texts = await inPage(() => {
      const all = new Set(), tell = () => ['model-says', 'says', 'method-says', 'at-says', 'chosen-says', 'frontier-says', 'a-says',
        'a-again', 'b-again', 'points-says'].forEach(id => all.add($(id).textContent));
      for (let at = 0; at < plan.instructions.length; at++) {
        go(at);
        chooseBox(at % plan.buffers.length);
        tell();
        choose(drawing.order[at % drawing.order.length]);
        tell();
      }
      return [...all];
    });
    for (const text of texts) check(!wrong.some(w => w.test(plain(text))), `grammar: ${text}`);
    check(/\b1 result is held/.test(texts.join()) && /[02-9] results are held/.test(texts.join()), `${hash}: one result is, two are`);
  }
  for (const [is, text] of Object.entries({ 'bytes(1)': '1 byte', 'bytes(2)': '2 bytes', 'bytes(999)': '999 bytes', 'bytes(999499)': '999 kB',
    'bytes(999600)': '1.00 MB', 'bytes(1234567)': '1.23 MB', 'apart(1234567, 1234568)': '1,234,567 bytes', 'percent(0.0001)': 'less than 0.1 %',
    'percent(0.0996)': '10 %', 'percent(0)': '0 %', 'are(1, "result")': '1 result is', 'are(2, "result")': '2 results are',
    'againInWords({ again: ["a"], results: 3 })': 'Of 3 results 1 is let go and computed again: a.',
    'againInWords({ again: ["a", "b", "a"], results: 3 })': 'Of 3 results 2 are let go and computed again: a (twice), b.' }))
    check(plain(await run(is)) === text, `${is} is ${await run(is)}`);
}

// Tests that colours with different meanings can be distinguished, also by people with a colour vision deficiency (matrices of
// Machado and others 2009, for the complete deficiency), and that text has enough contrast with its background.
const light = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const SEEN = {
  all: [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
  protanopia: [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
  deuteranopia: [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
  tritanopia: [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
};
// Returns the CIELAB coordinates of the colour "#rrggbb" as a person with the vision `seen` sees it.
function lab(colour, seen) {
  const from = [1, 3, 5].map(i => light(parseInt(colour.slice(i, i + 2), 16) / 255));
  const [r, g, b] = seen.map(row => Math.min(1, Math.max(0, row.reduce((s, w, i) => s + w * from[i], 0))));
  const [x, y, z] = [(0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047, 0.2126 * r + 0.7152 * g + 0.0722 * b,
    (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883].map(t => t > 0.008856 ? Math.cbrt(t) : 7.787 * t + 16 / 116);
  return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
}
// Returns [colour, background, name] for each text of the page; a text on a hatch has an entry for both colours of the hatch.
function textColours() {
  const all = [], names = getComputedStyle(document.documentElement);
  const named = n => `rgb(${[1, 3, 5].map(i => parseInt(names.getPropertyValue(`--${n}`).trim().slice(i, i + 2), 16)).join()})`;
  const behind = e => {
    const c = getComputedStyle(e).backgroundColor;
    return c === 'rgba(0, 0, 0, 0)' && e.parentElement ? behind(e.parentElement) : c;
  };
  for (const e of document.querySelectorAll('body *'))
    if (!e.closest('svg') && !e.disabled && e.checkVisibility() && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
      all.push([getComputedStyle(e).color, behind(e), `${e.tagName} ${e.textContent.slice(0, 20)}`]);
  for (const t of document.querySelectorAll('svg text')) {
    const box = t.closest('.node') && getComputedStyle(t.previousElementSibling).fill;
    for (const on of !box ? [behind(t.closest('svg'))] : box.includes('freed') ? [named('paper'), named('line')]
      : box.includes('again') ? [named('pink'), named('pale')] : [box])
      all.push([getComputedStyle(t).fill, on, `drawn ${t.textContent}`]);
  }
  for (const n of ['blue', 'sky', 'orange', 'red', 'grey'])
    all.push([onColor(color(n)) === '#000000' ? 'rgb(0,0,0)' : 'rgb(255,255,255)', named(n), `in the arena, on ${n}`]);
  return all;
}
async function colours() {
  const luminance = rgb => rgb.match(/[\d.]+/g).slice(0, 3).reduce((s, v, i) => s + [0.2126, 0.7152, 0.0722][i] * light(v / 255), 0);
  await open('#model=gpt&at=120');
  for (const mode of ['light', 'dark']) {
    await send('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: mode }] });
    await until(`color('blue') === getComputedStyle(document.documentElement).getPropertyValue('--blue').trim()`, `the colours of ${mode}`);
    const legends = [['arena', ['blue', 'sky', 'orange', 'red', 'grey', 'wash'], 25, 18], ['states', ['blue', 'green', 'wash'], 25, 12]];
    for (const [legend, names, least, leastSeen] of legends) {
      const is = await run(`${JSON.stringify(names)}.map(color)`);
      for (const [who, seen] of Object.entries(SEEN)) is.forEach((a, i) => is.slice(i + 1).forEach((b, k) => {
        const to = lab(b, seen), apart = Math.hypot(...lab(a, seen).map((v, j) => v - to[j]));
        check(apart >= (who === 'all' ? least : leastSeen),
          `${mode}, ${legend}: ${names[i]} and ${names[i + 1 + k]} are alike (${who}): ${apart.toFixed(0)}`);
      }));
    }
    const low = (await inPage(textColours)).map(([a, b, what]) => {
      const [dark, bright] = [luminance(a), luminance(b)].sort((p, q) => p - q);
      return [(bright + 0.05) / (dark + 0.05), what];
    }).filter(([ratio]) => !(ratio >= 4.5));
    check(low.length === 0, `${mode}: text that hardly stands out: ${low.map(([r, what]) => `${what} (${r.toFixed(1)})`)}`);
  }
}

// Tests the grey region of the chart: its meaning is written in the drawing and below it, for both parts if they differ.
async function grey() {
  for (const [width, hash] of [[320, '#model=chain'], [1280, '#model=gpt']]) {
    await send('Emulation.setDeviceMetricsOverride', { width, height: 800, deviceScaleFactor: 1, mobile: width < 600 });
    await open(hash);
    const [text, says, within, between] = await inPage(() => {
      const text = document.querySelector('#frontier .grey-says'), t = text.getBoundingClientRect(), box = $('frontier').getBoundingClientRect();
      return [text.textContent, $('frontier-says').textContent,
        t.left >= box.left && t.right <= box.right && t.top >= box.top && t.bottom <= box.bottom,
        frontier.proven_bytes < frontier.points[0].bytes];
    });
    check(text === 'no plan fits' && within, `${width}, the grey region: ${text}, ${within}`);
    check(/Grey, at the left: .*proven that no plan fits/.test(says) && /none was found/.test(says) === between, `${width}: ${says}`);
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

// Tests the explanations: of words where they occur, the tour, and the notes about methods or switches that have no effect.
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
  // clicks faster than plans are made
  await run(`['tour-begin', 'tour-next', 'tour-next'].forEach(id => $(id).click())`);
  await until('playing && plan.instructions.some(i => i[4])', 'the third part at once');
  check(await inPage(() => state.at + 3 >= plan.instructions.findIndex(i => i[4])), `the third part begins at ${await run('state.at')}`);
  await run(`$('tour-end').click()`);
  await run(`(() => { const mode = document.getElementById('mode'); mode.value = 2; mode.onchange(); })()`);
  await until(`/does not look at the budget/.test(document.getElementById('method-says').textContent)`, 'a method says so');
  await run(`document.getElementById('fault').click()`);
  await until(`/makes no difference/.test(document.getElementById('fault-says').textContent)`, 'the fault without unequal lengths');
}

// Tests buttons that are pressed while steps run: no step of an older run is counted in the new one, and none is taken twice.
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

// Tests setting points by keys, and the messages about invalid input.
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

// Tests that both runs, and the program that the page's command starts, end with the same weights.
async function trains(hash, steps, what) {
  await open(hash);
  await until('runs.every(r => r.plan && !r.plan.error)', `${what}: both plans`);
  const [a, b] = await run('runs.map(r => r.plan.bytes)');
  check(b < a, `${what}: B's ${b} bytes are fewer than A's ${a}`);
  await run(`(async () => { for (let i = 0; i < ${steps}; i++) await steps(); })()`);
  const [one, two] = await run('runs.map(r => r.hash)'), data = join(profile, 'data.txt');
  writeFileSync(data, await run('learned()'));
  check(await inPage(() => $('command').textContent.split('\n').slice(1).join() === runs.map(command).join()
    && [...document.querySelectorAll('#command .option')].every(e => e.getClientRects().length === 1)), 'the command: options are whole');
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
  const [again, tells, other] = await run(`[runs[1].plan.again, $('b-again').textContent, $('a-again').textContent]`);
  check(again.length > 0 && again.every(name => tells.includes(name)) && /computed again/.test(tells) && /stay/.test(other),
    `points: B computes again ${again}: ${tells}`);
  [a, b] = await trains('#learn=gpt&unequal=1', 3, 'unequal lengths');
  check(a === b, `unequal lengths: ${a}, ${b}`);
  [a, b, says] = await trains('#learn=gpt&unequal=1&fault=1', 3, 'the fault');
  check(a !== b && /differ/.test(says), `the fault: ${a}, ${b}: ${says}`);
  await until('/fault=1/.test(location.hash)', 'the fault is in the address');
}

// Tests that the page repeats steps of a ledger that the native program wrote, and refuses one with a wrong bit.
async function audits() {
  const file = name => join(profile, name), program = resolve(relay);
  execFileSync(program, ['record', file('ledger'), '20', '0']);
  execFileSync(program, ['record', file('wrong'), '20', '14']);
  execFileSync(program, ['-', file('12.safetensors'), '12']);
  const choose = async (id, name) => {
    const { result } = await send('Runtime.evaluate', { expression: `$('${id}')` });
    await send('DOM.setFileInputFiles', { objectId: result.objectId, files: [file(name)] });
  };
  const says = async (steps, what) => {
    await run(`$('audit-says').textContent = '', $('audit-steps').value = ${steps}, $('audit').click()`);
    await until(`/true|Refused|Choose/.test($('audit-says').textContent)`, what);
    return run(`$('audit-says').textContent`);
  };
  await open('#see=audit');
  check(/^Choose a ledger/.test(await says(4, 'no ledger')), 'an audit without a ledger');
  await choose('ledger', 'ledger');
  check(await says(2, 'from the start') === 'Steps 1 to 2: every record is true.', 'an audit from the start');
  await choose('from', '12.safetensors');
  check(await says(4, 'the ledger') === 'Steps 13 to 16: every record is true.', 'an audit from a checkpoint');
  check(/^Refused: the ledger has no record of this step/.test(await says(9, 'too many steps')), 'an audit past the end');
  await choose('ledger', 'wrong');
  const refused = await says(4, 'a wrong ledger');
  check(/^Refused: record 14, step 14: the first tensor that differs is values/.test(refused), `a wrong ledger: ${refused}`);
  await choose('from', 'ledger');
  check(/^Refused: load/.test(await says(4, 'no checkpoint')), 'an audit from a file that is no checkpoint');
}

// Tests that the page counts the bytes that the native program counts, and refuses what it refuses.
async function counts() {
  const file = join(profile, 'config.json'), config = { model_type: 'llama', num_hidden_layers: 3, hidden_size: 2048,
    intermediate_size: 8192, num_attention_heads: 32, num_key_value_heads: 8, vocab_size: 128256, max_position_embeddings: 2048 };
  const count = async (given, budget, what) => {
    writeFileSync(file, JSON.stringify(given));
    const { result } = await send('Runtime.evaluate', { expression: `$('config')` });
    await send('DOM.setFileInputFiles', { objectId: result.objectId, files: [file] });
    await run(`$('fits-says').textContent = '', $('fits-budget').value = ${budget}, $('fits').click()`);
    await until(`/recomput|WebAssembly|config.json/.test($('fits-says').textContent)`, what);
    return run(`$('fits-says').textContent`);
  };
  await open('#see=fits');
  const mega = n => Math.ceil(n / 1e6).toLocaleString('en-US');
  for (const budget of [0, 700]) { // the loss has more than 4 GB in float
    await count(config, budget, `${budget} MB`);
    const table = await inPage(() => [...$('fits-table').rows].map(row => [...row.cells].map(cell => cell.textContent)));
    check(table[0].length === 4 && table.length > 20, `the table: ${table.length} rows, ${table[0]}`);
    for (const [method, name, storage, kind] of [[0, 'full', 0, 'f32'], [5, 'lora', 0, 'f32'], [5, 'lora', 3, 'int8'], [9, 'prompt', 4, 'int4']]) {
      const of = JSON.parse(execFileSync(fits, [file, method, storage, 2048, budget * 1e6]).toString().split('\n')[1]);
      const want = !budget ? `${mega(of.least)} to ${mega(of.most)} MB` : of.fits ? `yes, +${Math.round(100 * of.overhead)} % time`
        : `no: ${mega(of.least)} MB`;
      const row = table.find(([a, b]) => a === name && b === kind);
      check(row && row[3] === want, `${budget} MB: ${row}; natively ${want}`);
    }
  }
  check(/unheard-of/.test(await count({ model_type: 'unheard-of' }, 0, 'an unknown model')), 'an unknown model is refused by name');
  await run('WebAssembly.validate = () => false');
  check(/finetune --will-it-fit/.test(await count(config, 0, 'an old browser')), 'an old browser: the message names the native program');
}

await tested('playground', async browser => {
  ({ profile, send, run, look, check } = browser);
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
  await audits();
  await counts();
  await explains();
  await keys();
  await races();
  await open('#model=gpt&at=80');
  await run('(async () => { for (let i = 0; i < 11; i++) await steps(); })()');
  for (const width of [320, 390, 1280])
    for (const dark of [false, true]) await shot(`${width}-${dark ? 'dark' : 'light'}`, width, 800, dark);
  await run('document.querySelectorAll("button.word").forEach(b => b.click())');
  await shot('320-words', 320, 800, false);
});
