// node tests/slides.mjs SLIDES.html [FOLDER]: tests the slides of the course in a headless
// Chromium. FOLDER: a folder for screenshots.
import { resolve, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { tested } from './browser.mjs';

const [page, folder] = process.argv.slice(2);
tested('slides', async ({ send, run, look, shot, check }) => {
  const open = async hash => {
    await send('Page.navigate', { url: 'about:blank' });
    await send('Page.navigate', { url: pathToFileURL(resolve(page)).href + hash });
    for (let i = 0; i < 600 && !await run('document.readyState === "complete" && typeof slides !== "undefined"'); i++)
      await new Promise(done => setTimeout(done, 50));
  };
  const onScreen = () => run('[...document.querySelectorAll("section")].filter(s => Math.abs(s.getBoundingClientRect().left) < 2).map(s => s.id).join()');
  const press = async (key, more = {}) => {
    await send('Input.dispatchKeyEvent', { type: 'keyDown', key, ...more });
    await send('Input.dispatchKeyEvent', { type: 'keyUp', key, ...more });
    return `${await onScreen()} ${await run('location.hash')}`;
  };

  await look(1280, 720, false);
  await open('');
  check(await onScreen() === '0-1', 'it does not begin with the list of lessons');
  for (const [key, to] of [['ArrowRight', '1-1'], [' ', '1-2'], ['PageDown', '1-3'], ['ArrowLeft', '1-2'], ['3', '3-1'], ['Home', '0-1'],
    ['ArrowLeft', '0-1'], ['8', '8-1'], ['0', '0-1'], ['9', '0-1']]) {
    const now = await press(key);
    check(now === `${to} #${to}` || now === `${to} `, `${key} leads to ${now}, not to ${to}`);
  }
  const last = await run('slides.at(-1).id');
  check(await press('End') === `${last} #${last}` && await press('ArrowRight') === `${last} #${last}`, 'End');
  const light = await run('getComputedStyle(document.body).backgroundColor');
  await press('d');
  check(await run('getComputedStyle(document.body).backgroundColor') !== light, 'd: light or dark');
  await run('main.scrollTo({ left: 4 * main.clientWidth, behavior: "instant" })');
  await new Promise(done => setTimeout(done, 300));
  check(await run('location.hash === `#${slides[4].id}`'), 'a swipe changes the address');
  await open('#5-3');
  check(await onScreen() === '5-3', 'an address leads to its slide');
  await run('document.querySelector("section[id=\\"5-3\\"] footer a").click()');
  await new Promise(done => setTimeout(done, 100));
  check(await onScreen() === '0-1', 'the foot leads to the list of lessons');

  for (const [width, height] of [[1280, 720], [1024, 768], [390, 844]])
    for (const dark of [false, true]) {
      await look(width, height, dark);
      await open('#3-5');
      check(await onScreen() === '3-5', `${width}: the slide fills the window`);
      const wide = await run('slides.filter(s => s.scrollWidth > s.clientWidth).map(s => s.id).join()');
      check(wide === '', `${width}: wider than the window: ${wide}`);
      if (width > 1000) {
        const high = await run(`slides.filter(s => s.scrollHeight > s.clientHeight ||
          [...s.querySelectorAll('pre')].some(p => p.scrollWidth > p.clientWidth)).map(s => s.id).join()`);
        check(high === '', `${width} x ${height}: more than fits: ${high}`);
      }
      if (folder) await shot(join(folder, `slides-${width}-${dark ? 'dark' : 'light'}.png`));
    }
  const { data } = await send('Page.printToPDF', { preferCSSPageSize: true });
  const pages = (Buffer.from(data, 'base64').toString('latin1').match(/\/Type\s*\/Page\b/g) || []).length;
  check(pages === await run('slides.length'), `printed, it has ${pages} pages`);
});
