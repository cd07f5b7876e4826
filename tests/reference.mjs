// node tests/reference.mjs PAGE.html [FOLDER]: the reference in a headless Chromium. FOLDER: for screenshots.
import { spawn } from 'node:child_process';
import { writeFileSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { resolve, join } from 'node:path';
import { pathToFileURL } from 'node:url';

const [page, folder] = process.argv.slice(2);
const profile = mkdtempSync(join(tmpdir(), 'reference-'));
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
const open = async hash => {
  await send('Page.navigate', { url: 'about:blank' });
  await send('Page.navigate', { url: pathToFileURL(resolve(page)).href + hash });
  for (let i = 0; i < 600 && !await run('document.readyState === "complete" && typeof entries !== "undefined"'); i++)
    await new Promise(done => setTimeout(done, 50));
};
const type = words => run(`q.focus(); q.value = ${JSON.stringify(words)}; q.dispatchEvent(new Event('input'));
  [...found.querySelectorAll('b')].map(b => b.textContent)`);
const key = k => run(`q.dispatchEvent(new KeyboardEvent('keydown', { key: '${k}', bubbles: true, cancelable: true }))`);

let passed = 0, failed = 0;
function check(good, what) {
  if (good) passed++;
  else failed++, console.log(`reference: ${what}`);
}

// ---- what is tested ----
async function searches() {
  await open('');
  for (const [words, first] of [['step', 'gckpt_step'], ['gckpt_plan_new', 'gckpt_plan_new'], ['conv2d', 'gckpt_conv2d'],
    ['F.cross_entropy', 'gckpt_cross_entropy'], ['no_images', 'GCKPT_NO_IMAGES'], ['e_budget', 'GCKPT_E_BUDGET'],
    ['plan_desc budget', 'gckpt_plan_desc.budget'], ['sensor', 'gckpt_step_begin'], ['losses', 'Losses'], ['beta1', 'gckpt_hyper.eps'], ['loss cross', 'gckpt_cross_entropy'], ['huber', 'gckpt_huber'], ['planning', '9. Planning']]) {
    const names = await type(words);
    check(names.slice(0, 6).includes(first), `"${words}" finds ${names.slice(0, 6).join(', ')}`);
  }
  check((await type('zebra')).length === 0 && await run('found.textContent.includes("nothing")'), 'no answer says so');
  await type('conv2d');
  await key('ArrowDown');
  await key('ArrowUp');
  await key('Enter');
  check(await run('location.hash === "#gckpt_conv2d" && found.hidden'), 'Enter leads there');
  await type('step');
  await key('Escape');
  check(await run('found.hidden'), 'Escape closes');
  await run('q.blur(); document.dispatchEvent(new KeyboardEvent("keydown", { key: "/", bubbles: true, cancelable: true }))');
  check(await run('document.activeElement === q'), '/ goes to the search box');
  const names = await run('[...document.querySelectorAll("[data-k=function]")].filter(e => !e.offsetParent).map(e => e.id)');
  check(names.length === 0, `hidden: ${names.join(', ')}`);
}

async function looks() {
  const shots = [['top', ''], ['ops', '#gckpt_conv2d'], ['struct', '#gckpt_plan_desc'], ['manual', '#manual-5c'],
    ['switches', '#GCKPT_NO_SEARCH'], ['found', 'loss']];
  for (const [width, height, device] of [[1280, 900, 'desktop'], [390, 844, 'phone']])
    for (const dark of [false, true])
      for (const [name, hash] of shots) {
        await send('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: dark ? 'dark' : 'light' }] });
        await send('Emulation.setDeviceMetricsOverride', { width, height, deviceScaleFactor: 1, mobile: width < 600 });
        await open(hash.startsWith('#') ? hash : '');
        if (name === 'found') await type(hash);
        await new Promise(done => setTimeout(done, 150));
        const wide = await run('document.documentElement.scrollWidth');
        check(wide <= width, `${name}: ${wide} pixels wide in a window of ${width}`);
        if (hash.startsWith('#'))
          check(await run(`(y => y > 40 && y < innerHeight)(document.querySelector('${hash}').getBoundingClientRect().top)`),
            `${hash} is not in sight on a ${device}`);
        const { data } = await send('Page.captureScreenshot');
        if (folder) writeFileSync(join(folder, `${device}-${dark ? 'dark' : 'light'}-${name}.png`), Buffer.from(data, 'base64'));
      }
}

try {
  const { targetInfos } = await send('Target.getTargets');
  const target = targetInfos.find(t => t.type === 'page').targetId;
  session = (await send('Target.attachToTarget', { targetId: target, flatten: true })).sessionId;
  for (const domain of ['Page', 'Runtime', 'Log']) await send(`${domain}.enable`);
  await searches();
  await looks();
  check(faults.length === 0, `the browser says: ${faults.join('; ')}`);
} catch (error) {
  check(false, error.message);
} finally {
  chrome.kill();
  await new Promise(done => chrome.once('exit', done));
  rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
}
console.log(`reference: ${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
