/* Anomaly - watches a machine. An autoencoder, 16-8-3-8-16, trained on a computer with vibrations
 * of the healthy machine, reproduces such rows and few others. A row that it reproduces badly is an
 * anomaly and turns the LED on. The board does not train: weights stay in flash, and training code
 * is omitted (GCKPT_NO_TRAINING, in parts.h).
 *
 * anomaly.h simulates the sensor and the machine. plan.h has the weights, the largest normal error
 * and the plan; a program in extras/ printed it on a computer. */
#pragma GCC optimize("fp-contract=off") // a*b+c is rounded the same way on every board
#include "parts.h"
#define GCKPT_SMALL             // omits error texts and other parts: less flash
#define GCKPT_STATIC            // no other file calls the library: less flash
#define GRADCKPT_IMPLEMENTATION // the library's code is compiled here
#include <gradckpt.h>
#include "plan.h"
#include "anomaly.h"

char store_block[plan_store_bytes - weights_bytes], exec_block[plan_exec_bytes];
gckpt_exec *watcher;

// Stops after an error and prints its number, a gckpt_result of gradckpt.h; the LED stays dark.
void stopUnless(bool fine, int result) {
  if (fine)
    return;
  Serial.print("refused: ");
  Serial.println(result);
  for (;;)
    delay(1000);
}

// Returns the mean squared error of the network's output for a row.
float errorOf(const float *row) {
  const gckpt_feed feed = { plan_x, row };
  gckpt_result result = gckpt_forward(watcher, &feed, 1, 1, NULL);
  stopUnless(result == GCKPT_OK, result);
  const float *back = gckpt_fetch(watcher, plan_back, 0);
  float sum = 0;
  for (int i = 0; i < READINGS; i++) {
    const float d = row[i] - back[i];
    sum = gckpt_fma(d, d, sum); // a fused multiply-add in software has the same bits on every board
  }
  return sum / (float)READINGS;
}

void setup() {
  Serial.begin(115200);
  pinMode(LED_BUILTIN, OUTPUT);
  gckpt_store_desc in_store = gckpt_store_desc();
  in_store.memory.memory = store_block;
  in_store.memory.size = sizeof store_block;
  gckpt_store *store = gckpt_store_new(&in_store);
  stopUnless(store, GCKPT_E_MEMORY);
  gckpt_result result = weights_bind(store);
  stopUnless(result == GCKPT_OK, result);
  result = gckpt_plan_params(&plan, store);
  stopUnless(result == GCKPT_OK, result);
  gckpt_exec_desc in_exec = gckpt_exec_desc();
  in_exec.memory.memory = exec_block;
  in_exec.memory.size = sizeof exec_block;
  watcher = gckpt_exec_new(&plan, store, &in_exec);
  stopUnless(watcher, gckpt_error(store));
}

// Reads a row of the simulated sensor; every eighth row has a fault (knock, overspeed or stuck
// sensor).
void loop() {
  static uint32_t number = 0;
  float row[READINGS];
  const machine_fault what = number % 8 < 7 ? HEALTHY : (machine_fault)(1 + number / 8 % STUCK);
  sense(number, what, row);
  const float error = errorOf(row);
  const bool anomaly = error > MOST_ERROR;
  Serial.print("row ");
  Serial.print(number);
  Serial.print(": error ");
  Serial.print(error, 6);
  if (anomaly)
    Serial.println(what == HEALTHY ? ", a false alarm" : ", an anomaly");
  else
    Serial.println(what == HEALTHY ? "" : ", overlooked");
  digitalWrite(LED_BUILTIN, anomaly ? HIGH : LOW);
  number++;
  delay(100);
}
