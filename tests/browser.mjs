// Runs a page in a headless Chromium without any network, for tests of pages, and controls it by Chromium's protocol
// over a pipe.
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

// tested(NAME, async browser => ..) runs the test; browser has profile (a folder), send, run, look, shot, check. Ends
// the process, after printing the checks that failed.
export async function tested(name, body) {
  const profile = mkdtempSync(join(tmpdir(), `${name}-`));
  const chrome = spawn(process.env.CHROMIUM || 'chromium', ['--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage',
    `--user-data-dir=${profile}`, '--remote-debugging-pipe', 'about:blank'], { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });
  // messages are JSON that ends with a NUL, in both directions
  const waiting = new Map(), faults = [];
  let number = 0, rest = '', session, passed = 0, failed = 0;
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
  const look = async (width, height, dark) => { // sets the size of the window, and whether its user prefers dark pages
    await send('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: dark ? 'dark' : 'light' }] });
    await send('Emulation.setDeviceMetricsOverride', { width, height, deviceScaleFactor: 1, mobile: width < 600 });
  };
  const shot = async file => {
    const { data } = await send('Page.captureScreenshot');
    if (file) writeFileSync(file, Buffer.from(data, 'base64'));
  };
  const check = (good, what) => {
    if (good) passed++;
    else failed++, console.log(`${name}: ${what}`);
  };
  try {
    const { targetInfos } = await send('Target.getTargets');
    const target = targetInfos.find(t => t.type === 'page').targetId;
    session = (await send('Target.attachToTarget', { targetId: target, flatten: true })).sessionId;
    for (const domain of ['Page', 'Runtime', 'Log']) await send(`${domain}.enable`);
    await body({ profile, send, run, look, shot, check });
    check(faults.length === 0, `the browser says: ${faults.join('; ')}`);
  } catch (error) {
    check(false, error.message);
  } finally {
    chrome.kill('SIGKILL'); // Chromium has nothing to save
    await new Promise(done => chrome.once('exit', done));
    try { // its child processes end a little later, and may still write files
      rmSync(profile, { recursive: true, force: true, maxRetries: 20 });
    } catch (error) {
      console.log(`${name}: ${profile} stays: ${error.message}`);
    }
  }
  console.log(`${name}: ${passed} passed, ${failed} failed`);
  process.exit(failed ? 1 : 0);
}
