// node tests/playground.mjs PAGE.html TINY [FOLDER]: the playground in a headless Chromium, beside the native program
// (docs/playground/tiny.c). FOLDER: for screenshots.
import { spawn, execFileSync } from 'node:child_process';
import { writeFileSync, mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { resolve, join } from 'node:path';
import { pathToFileURL } from 'node:url';

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
  const { data } = await send('Page.captureScreenshot', { captureBeyondViewport: true });
  if (folder) writeFileSync(join(folder, `${name}.png`), Buffer.from(data, 'base64'));
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
    const [points, arena, text] = await run('[frontier.points.length, plan.arena, document.getElementById("says").textContent]');
    check(points >= 2 && arena > 0, `${model}: ${points} points, ${arena} bytes`);
    check(/bytes|kB|MB/.test(text), `${model} says: ${text}`);
  }
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
  await slider();
  await address();
  await training();
  await explains();
  await keys();
  await races();
  await open('#model=gpt&at=80');
  await run('(async () => { for (let i = 0; i < 11; i++) await steps(); })()');
  await shot('wide', 1200, 900, false);
  await shot('phone', 390, 800, true);
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
