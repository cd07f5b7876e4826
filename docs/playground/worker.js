// Runs a program in a worker: replies to {call, of: [..]} with {answer}; copies bytes into its memory as its text. Addresses of
// a 64-bit program are BigInts.
let engine;
onmessage = async ({ data }) => {
  if (data.program) {
    engine = WebAssembly.instantiate(data.program, {});
    return;
  }
  const { memory, ...calls } = (await engine).instance.exports;
  if (data.text) {
    const to = Number(calls.playground_text(data.text.length));
    new Uint8Array(memory.buffer).set(data.text, to);
  }
  const at = Number(calls['playground_' + data.call](...data.of));
  const all = new Uint8Array(memory.buffer);
  postMessage({ answer: JSON.parse(new TextDecoder().decode(all.subarray(at, all.indexOf(0, at)))) });
};
