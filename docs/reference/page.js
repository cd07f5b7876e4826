'use strict';
// ---- entries: all elements with data-k, in the order of the page; a search looks at names, then at texts ----
const entries = [...document.querySelectorAll('[data-k]')].map(e => {
  const block = e.closest('article') || e.closest('tr, section');
  const own = e.closest('tr') || block;
  const text = e.dataset.k === 'switch' ? e.nextElementSibling.textContent
    : /manual|section/.test(e.dataset.k) ? '' : [...own.querySelectorAll('p, dd')].map(p => p.textContent).join(' ');
  return { e, id: e.id, kind: e.dataset.k, name: e.id.toLowerCase(), text: text.replace(/\s+/g, ' ').trim(),
    section: e.closest('section').querySelector('h2').textContent.toLowerCase(), title: /manual|section/.test(e.dataset.k) ? e.textContent : e.id };
});
// The text of a chapter ends at the next one; the text of a section ends at its first declaration.
for (const m of entries.filter(x => /manual|section/.test(x.kind))) {
  for (let n = m.e.nextElementSibling; n && !/H3|ARTICLE/.test(n.tagName); n = n.nextElementSibling) m.text += ' ' + n.textContent;
  m.text = m.text.trim();
  m.name = m.title.toLowerCase();
}
// A declaration of several fields (float beta1, beta2, eps) is found by each of their names.
for (const x of entries) x.low = (x.text + ' ' + (x.kind === 'field' ? x.e.textContent : '')).toLowerCase();

const rank = { 'function': 0, struct: 1, 'enum': 1, type: 1, 'function type': 1, macro: 2, value: 3, 'switch': 2, manual: 3, section: 2, field: 12 };
// Returns a number that is small for good matches, or -1 if a word is not found.
function score(x, words) {
  let sum = 0;
  const bare = x.name.replace(/^gckpt_|^gradckpt_/, '');
  for (const w of words) {
    const plain = w.replace(/^gckpt_/, '');
    if (bare === plain || x.name === w) sum += 0;
    else if (bare.startsWith(plain)) sum += 10;
    else if (bare.split(/[_. ]/).some(part => part.startsWith(plain))) sum += 20;
    else if (x.name.includes(w)) sum += 30;
    else if (x.kind !== 'field' && x.section.startsWith(w)) sum += 60;
    else if (new RegExp('(^|[^a-z0-9])' + w.replace(/[^a-z0-9]/g, '\\$&')).test(x.low)) sum += 100;
    else if (w.length > 2 && x.low.includes(w)) sum += 150;
    else return -1;
  }
  return sum + rank[x.kind] * 2 + Math.min(x.name.length, 60) / 100;
}

const q = document.getElementById('q'), found = document.getElementById('found');
let shown = [], at = -1;
function search() {
  const words = q.value.toLowerCase().trim().split(/\s+/).filter(w => w);
  shown = words.length === 0 ? [] : entries.map(x => [score(x, words), x]).filter(p => p[0] >= 0)
    .sort((a, b) => a[0] - b[0]).slice(0, 50).map(p => p[1]);
  found.replaceChildren();
  at = shown.length ? 0 : -1;
  shown.forEach((x, i) => {
    const li = document.createElement('li'), a = document.createElement('a'), b = document.createElement('b'),
      small = document.createElement('small');
    li.setAttribute('role', 'option');
    li.id = 'found-' + i;
    a.href = '#' + x.id;
    a.tabIndex = -1;
    b.textContent = x.title;
    const where = words.map(w => x.low.indexOf(w)).filter(k => k >= 0)[0] || 0;
    const from = where > 90 ? x.text.indexOf(' ', where - 60) + 1 : 0;
    small.textContent = (from ? '.. ' : '') + x.text.slice(from, from + 140);
    a.append(b, small);
    a.addEventListener('click', () => close());
    li.append(a);
    found.append(li);
  });
  if (words.length && !shown.length) {
    const li = document.createElement('li');
    li.className = 'none';
    li.textContent = 'nothing has all of these words';
    found.append(li);
  }
  found.hidden = words.length === 0;
  q.setAttribute('aria-expanded', String(!found.hidden));
  mark();
}
function mark() {
  [...found.children].forEach((li, i) => li.setAttribute('aria-selected', String(i === at)));
  if (at >= 0) {
    found.children[at].scrollIntoView({ block: 'nearest' });
    q.setAttribute('aria-activedescendant', 'found-' + at);
  } else q.removeAttribute('aria-activedescendant');
}
function close() {
  found.hidden = true;
  q.setAttribute('aria-expanded', 'false');
}
q.addEventListener('input', search);
q.addEventListener('focus', () => { if (q.value) search(); });
q.addEventListener('keydown', event => {
  if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
    if (shown.length) at = (at + (event.key === 'ArrowDown' ? 1 : shown.length - 1)) % shown.length;
    mark();
    event.preventDefault();
  } else if (event.key === 'Enter' && at >= 0) {
    location.hash = '#' + shown[at].id;
    close();
    q.blur();
  } else if (event.key === 'Escape') {
    close();
    q.blur();
  }
});
document.addEventListener('keydown', event => {
  if (event.key === '/' && document.activeElement !== q) {
    event.preventDefault();
    q.focus();
    q.select();
  }
});
document.addEventListener('click', event => { if (!event.target.closest('#search')) close(); });

// ---- contents: sections, each with its named declarations ----
const contents = document.getElementById('contents');
const all = document.createElement('details'), summary = document.createElement('summary');
summary.textContent = 'Contents';
all.append(summary);
contents.append(all);
for (const section of document.querySelectorAll('main > section')) {
  const names = section.querySelectorAll('h4[data-k], h3[data-k]');
  if (!names.length) continue;
  const part = document.createElement('details'), head = document.createElement('summary'), a = document.createElement('a');
  const h2 = section.querySelector('h2');
  a.href = '#' + h2.id;
  a.textContent = h2.textContent;
  head.append(a);
  part.append(head);
  part.dataset.of = h2.id;
  for (const e of names) {
    const item = document.createElement('a');
    item.href = '#' + e.id;
    item.textContent = e.dataset.k === 'manual' ? e.textContent.split(/[:(]|, before/)[0] : e.id;
    part.append(item);
  }
  all.append(part);
}
const wide = matchMedia('(min-width: 60rem)');
const arrange = () => { all.open = wide.matches; };
wide.addEventListener('change', arrange);
arrange();
contents.addEventListener('click', event => { if (event.target.closest('a') && !wide.matches) all.open = false; });
// Opens the section of the current location.
const follow = () => {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const section = target && target.closest('main > section');
  for (const part of contents.querySelectorAll('[data-of]')) 
    if (section && part.dataset.of === section.querySelector('h2').id) part.open = true;
};
addEventListener('hashchange', follow);
follow();
