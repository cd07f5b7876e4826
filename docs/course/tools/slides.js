'use strict';
const main = document.querySelector('main'), slides = [...document.querySelectorAll('section')];
let at = Math.max(0, slides.findIndex(s => `#${s.id}` === location.hash));
function go(n) {
  at = Math.min(Math.max(n, 0), slides.length - 1);
  main.scrollTo({ left: at * main.clientWidth });
  tell();
}
function tell() {
  if (location.hash !== `#${slides[at].id}`) history.replaceState(null, '', `#${slides[at].id}`);
  document.title = `${slides[at].querySelector('h2').textContent}: training in a byte budget`;
}
addEventListener('keydown', e => {
  if (e.ctrlKey || e.altKey || e.metaKey) return;
  const on = e.target.closest('a');
  if (['ArrowRight', 'PageDown'].includes(e.key) || (e.key === ' ' && !e.shiftKey) || (e.key === 'Enter' && !on))
    go(at + 1);
  else if (['ArrowLeft', 'PageUp', 'Backspace'].includes(e.key) || e.key === ' ') go(at - 1);
  else if (e.key === 'Home') go(0);
  else if (e.key === 'End') go(slides.length - 1);
  else if (/^[0-9]$/.test(e.key) && document.getElementById(`${e.key}-1`))
    go(slides.findIndex(s => s.id === `${e.key}-1`));
  else if (e.key === 'd') {
    const dark = getComputedStyle(document.documentElement).colorScheme === 'dark';
    document.documentElement.className = dark ? 'light' : 'dark';
  } else return;
  e.preventDefault();
});
main.addEventListener('scroll', () => { // a swipe
  const now = Math.round(main.scrollLeft / main.clientWidth);
  if (now !== at && slides[now]) { at = now; tell(); }
}, { passive: true });
addEventListener('hashchange', () => go(Math.max(0, slides.findIndex(s => `#${s.id}` === location.hash))));
addEventListener('resize', () => go(at));
go(at);
main.focus({ preventScroll: true });
