/* Blink - a small network learns a heartbeat on the board, from 16 samples of its brightness, and
 * blinks the LED accordingly. Change the samples, and it learns yours.
 *
 * plan.h has the instructions and bytes of training (learn) and of inference (tell); a program in
 * extras/ printed it on a computer. parts.h omits the parts of the library that these plans do not
 * need. */
#pragma GCC optimize("fp-contract=off") // a*b+c is rounded the same way on every board
#include "parts.h"
#define GCKPT_SMALL             // omits error texts and other parts: less flash
#define GCKPT_STATIC            // no other file calls the library: less flash
#define GRADCKPT_IMPLEMENTATION // the library's code is compiled here
#include <gradckpt.h>
#include "plan.h"

const int STEPS = 400, SAMPLES = 16;
const float brightness[SAMPLES] = { 0.1, 0.5, 1.0, 0.5, 0.1, 0.3, 0.7, 0.3,
                                    0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0 };

// Memory for weights and optimiser state, and for the executors of learn and tell; nothing is
// allocated on a heap.
char store_block[learn_store_bytes], learn_block[learn_exec_bytes], tell_block[tell_exec_bytes];
gckpt_store *store;
gckpt_exec *teller;

// Stops after an error and prints its number, a gckpt_result of gradckpt.h; the LED stays dark.
void stopUnless(bool fine, int result) {
  if (fine)
    return;
  Serial.print("refused: ");
  Serial.println(result);
  for (;;)
    delay(1000);
}

gckpt_exec *executor(const gckpt_plan &plan, void *block, size_t size) {
  gckpt_exec_desc desc = gckpt_exec_desc();
  desc.memory.memory = block;
  desc.memory.size = size;
  gckpt_exec *made = gckpt_exec_new(&plan, store, &desc);
  stopUnless(made, gckpt_error(store));
  return made;
}

// Scales a position in the heartbeat, from 0 to 1, to the range of the network's input.
float scaled(float when) {
  return 2 * when - 1;
}

void learnHeartbeat() {
  float when[SAMPLES];
  for (int i = 0; i < SAMPLES; i++)
    when[i] = scaled((float)i / SAMPLES);
  gckpt_exec *learner = executor(learn, learn_block, sizeof learn_block);
  const gckpt_feed feeds[] = { { learn_when, when }, { learn_light, brightness } };
  const gckpt_hyper adamw = gckpt_hyper_lr(0.05f);
  gckpt_report report;
  for (int step = 0; step < STEPS; step++) {
    gckpt_result result = gckpt_step(learner, feeds, 2, SAMPLES, &adamw, &report);
    stopUnless(result == GCKPT_OK, result);
    if (step % 100 == 0 || step == STEPS - 1) {
      Serial.print("mean squared error ");
      Serial.println(report.loss, 5);
    }
  }
}

float guessBrightness(float when) {
  const float place = scaled(when);
  const gckpt_feed feed = { tell_when, &place };
  gckpt_result result = gckpt_forward(teller, &feed, 1, 1, NULL);
  stopUnless(result == GCKPT_OK, result);
  return gckpt_fetch(teller, tell_guess, 0)[0];
}

void printHash() {
  uint64_t hash = gckpt_store_hash(store);
  Serial.print("weights ");
  for (int i = 60; i >= 0; i -= 4)
    Serial.print("0123456789abcdef"[hash >> i & 15]);
  Serial.println();
}

void setup() {
  Serial.begin(115200);
  pinMode(LED_BUILTIN, OUTPUT);
  gckpt_store_desc desc = gckpt_store_desc();
  desc.memory.memory = store_block;
  desc.memory.size = sizeof store_block;
  store = gckpt_store_new(&desc);
  stopUnless(store, GCKPT_E_MEMORY);
  gckpt_result result = gckpt_plan_params(&learn, store);
  stopUnless(result == GCKPT_OK, result);
  learnHeartbeat();
  printHash();
  teller = executor(tell, tell_block, sizeof tell_block);
}

// Lights the LED for a part of 20 ms that is proportional to the brightness. A beat has 50 such
// intervals.
void loop() {
  static int at = 0;
  float light = constrain(guessBrightness(at / 50.0f), 0.0f, 1.0f);
  int on = (int)(20 * light + 0.5f);
  at = (at + 1) % 50;
  if (on > 0) {
    digitalWrite(LED_BUILTIN, HIGH);
    delay(on);
  }
  if (on < 20) {
    digitalWrite(LED_BUILTIN, LOW);
    delay(20 - on);
  }
}
