// node tests/reference.mjs PAGE.html [FOLDER]: tests the reference page in a headless Chromium. FOLDER: a folder for screenshots.
import { resolve, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { tested } from './browser.mjs';

const [page, folder] = process.argv.slice(2);
let send, run, look, shot, check;
const open = async hash => {
  await send('Page.navigate', { url: 'about:blank' });
  await send('Page.navigate', { url: pathToFileURL(resolve(page)).href + hash });
  for (let i = 0; i < 600 && !await run('document.readyState === "complete" && typeof entries !== "undefined"'); i++)
    await new Promise(done => setTimeout(done, 50));
};
const type = words => run(`q.focus(); q.value = ${JSON.stringify(words)}; q.dispatchEvent(new Event('input'));
  [...found.querySelectorAll('b')].map(b => b.textContent)`);
const key = k => run(`q.dispatchEvent(new KeyboardEvent('keydown', { key: '${k}', bubbles: true, cancelable: true }))`);

// ---- the tests ----
async function searches() {
  await open('');
  for (const [words, first] of [['step', 'gckpt_step'], ['gckpt_plan_new', 'gckpt_plan_new'], ['conv2d', 'gckpt_conv2d'],
    ['F.cross_entropy', 'gckpt_cross_entropy'], ['no_heap', 'GCKPT_NO_HEAP'], ['e_budget', 'GCKPT_E_BUDGET'],
    ['plan_desc budget', 'gckpt_plan_desc.budget'], ['sensor', 'gckpt_step_begin'], ['losses', 'Losses'], ['beta1', 'gckpt_hyper.eps'], ['loss cross', 'gckpt_cross_entropy'], ['huber', 'gckpt_huber'], ['planning', '7. Planning and time (docs/planning.md)']]) {
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
  const shots = [['top', ''], ['ops', '#gckpt_conv2d'], ['struct', '#gckpt_plan_desc'], ['manual', '#manual-9'],
    ['switches', '#GCKPT_NO_HEAP'], ['found', 'loss']];
  for (const [width, height, device] of [[1280, 900, 'desktop'], [390, 844, 'phone']])
    for (const dark of [false, true])
      for (const [name, hash] of shots) {
        await look(width, height, dark);
        await open(hash.startsWith('#') ? hash : '');
        if (name === 'found') await type(hash);
        await new Promise(done => setTimeout(done, 150));
        const wide = await run('document.documentElement.scrollWidth');
        check(wide <= width, `${name}: ${wide} pixels wide in a window of ${width}`);
        if (hash.startsWith('#'))
          check(await run(`(y => y > 40 && y < innerHeight)(document.querySelector('${hash}').getBoundingClientRect().top)`),
            `${hash} is not visible on a ${device}`);
        await shot(folder && join(folder, `${device}-${dark ? 'dark' : 'light'}-${name}.png`));
      }
}

tested('reference', async browser => {
  ({ send, run, look, shot, check } = browser);
  await searches();
  await looks();
});
