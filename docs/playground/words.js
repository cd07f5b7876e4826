// ---- explanations and the tour ----
// Makes a word a button that opens its explanation below: the given text, or that of its key in the list of the page.
function explain(place) {
  const key = place.dataset.word || place.textContent, button = Object.assign(document.createElement('button'),
    { type: 'button', className: 'word', textContent: place.textContent });
  const said = Object.assign(document.createElement('p'), { className: 'explained', hidden: true });
  said.textContent = `${$(`word-${key}`).textContent}: ${place.dataset.says || $(`word-${key}`).nextElementSibling.textContent}`;
  said.setAttribute('role', 'status');
  button.setAttribute('aria-expanded', 'false');
  button.onclick = () => {
    said.hidden = !said.hidden;
    button.setAttribute('aria-expanded', String(!said.hidden));
  };
  place.closest('p, figcaption').append(said);
  place.replaceWith(button);
}
// The words of the choices: [shown, key (default: shown), explanation (default: that of the list)].
function tellWords(id, words) {
  const box = $(id), places = words.map(([shown, key, says]) => {
    const place = Object.assign(document.createElement('i'), { className: 'word', textContent: shown });
    place.dataset.word = key || shown;
    if (says) place.dataset.says = says;
    return place;
  });
  box.replaceChildren('What they are: ', ...places.flatMap((p, i) => i ? [', ', p] : [p]), '.');
  places.forEach(explain);
}
for (const place of document.querySelectorAll('.word')) explain(place);
const withBudget = (budget, then) => {
  Object.assign(state, { budget, mode: 'optimal', at: 0 });
  $('bytes').value = budget;
  planned = then;
  replan();
};
const half = () => Math.round((least() + most()) / 2);
const TOUR = [
  ['h-budget', 'frontier', 'Everything is kept', () => `With ${bytes(most())} nothing is computed twice. The red dot lies
    at the right end of the line: many bytes, the least time. Each result waits until the way back needs it.`,
    () => withBudget(most())],
  ['h-budget', 'frontier', 'Half way down', () => `The same step in ${bytes(state.budget)}. The planner lets results go and computes
    them again; the dot shows what that costs in time. The dashed line is proven: below it nobody can come.`,
    () => withBudget(half())],
  ['h-step', 'cells', 'What is computed again', () => `The step runs here, slowly. Striped in pink: a result that had been
    let go is computed a second time, because the way back has come to it. The network and the arena below show the same.`,
    () => withBudget(half(), () => { $('again').click(); go(state.at - 2); play(true, 600); })],
  ['h-train', 'same', 'The result is the same', () => `Two trainings, A with all the bytes it likes, B with fewer and in smaller pieces.
    Look at the hashes after each step: they are equal, so all weights are, to the last bit.`,
    () => { if (!learning) $('run').click(); }],
];
let toured = 0;
function tour(n) {
  if (!frontier || frontier.points.length < 2) return;
  $('tour').hidden = n >= TOUR.length;
  if (n >= TOUR.length) {
    play(false);
    $('tour-begin').focus();
    return;
  }
  const [place, shown, title, text, go] = TOUR[toured = n];
  play(false);
  go();
  $(place).after($('tour'));
  $('tour-title').textContent = `${n + 1} of ${TOUR.length}: ${title}`;
  $('tour-says').textContent = text();
  $('tour-next').textContent = n + 1 < TOUR.length ? 'next' : 'done';
  $(shown).style.scrollMarginTop = `${$('tour').offsetHeight + 12}px`;
  $(shown).scrollIntoView(n + 1 < TOUR.length);
  $('tour-title').focus({ preventScroll: true });
}
$('tour-begin').onclick = () => tour(0);
$('tour-next').onclick = () => tour(toured + 1);
$('tour-end').onclick = () => tour(TOUR.length);

const redraw = () => {
  if (frontier) drawFrontier();
  drawStep();
  drawLosses();
  if (training.learn !== 'gpt') drawPoints();
};
matchMedia('(prefers-color-scheme: dark)').onchange = () => {
  colors.clear();
  redraw();
};
let width = innerWidth;
addEventListener('resize', () => {
  if (width !== innerWidth) redraw();
  width = innerWidth;
});
addEventListener('popstate', () => clearTimeout(later)); // a pending write belongs to the previous entry
addEventListener('hashchange', () => location.reload());
fromAddress();
showModel();
build();
