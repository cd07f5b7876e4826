// ---- 5. the audit of a ledger, in a separate worker ----
$('audit').onclick = async () => {
  const [checkpoint, ledger] = await Promise.all(['from', 'ledger'].map(async id =>
    new Uint8Array($(id).files.length ? await $(id).files[0].arrayBuffer() : 0)));
  if (!ledger.length) {
    say('audit-says', 'Choose a ledger: make relay writes build/relay/ledger.', true);
    return;
  }
  const steps = Math.min(Math.max(Math.round(Number($('audit-steps').value)) || 1, 1), 60);
  const text = new Uint8Array(checkpoint.length + ledger.length), worker = new Worker(inWorker);
  text.set(checkpoint);
  text.set(ledger, checkpoint.length);
  say('audit-says', 'The page repeats the steps.');
  worker.onerror = broken;
  worker.onmessage = ({ data: { answer } }) => {
    worker.terminate();
    if (answer.equal) say('audit-says', `Steps ${answer.first} to ${answer.last}: every record is true.`);
    else say('audit-says', `Refused: ${answer.says}.`, true);
  };
  worker.postMessage({ program });
  worker.postMessage({ call: 'audit', of: [checkpoint.length, steps], text });
};
