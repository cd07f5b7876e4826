/* Keywords - hears words by a convolutional network that a computer has trained on six of them, and
 * learns two more, and your accent, on the board: its convolutions stay in flash as bytes, and only
 * the last layer learns. The LED is on while a word is heard right.
 *
 * keyword.h stands in for a microphone and for what makes ten numbers a frame of its sound: it says
 * a word by a formula. plan.h has the weights and two plans over them, recognise and learn; a
 * program of extras/ printed it on a computer. parts.h leaves out what these do not need. */
#pragma GCC optimize("fp-contract=off") // what a sketch computes has the same bits on every board
#include "parts.h"
#define GCKPT_SMALL             // no texts of errors: less flash
#define GCKPT_STATIC            // all calls are in this sketch: less again
#define GRADCKPT_IMPLEMENTATION // the library's code is compiled here
#include <gradckpt.h>
#include "plan.h"
#include "keyword.h"

const int WORDS = 8, FEATURES = 32;     // as in extras/keyword.c
const int TAKES = 3, ROUNDS = 20;       // each word is said so often, and learned in so many steps
const char *const names[WORDS] = { "yes", "no", "up", "down", "left", "right", "lamp", "fan" };
const uint32_t OWNER = 500, TESTS = 100; // your voice; takes from here on are not learned
const int32_t ACCENT = 56;
const size_t ARENA = recognise_arena_bytes > learn_arena_bytes ? recognise_arena_bytes
                                                               : learn_arena_bytes;

// The last layer; what each plan needs by itself; where both compute, one after the other.
char store_block[recognise_store_bytes - weights_flash_bytes];
char ears_block[recognise_exec_bytes - recognise_arena_bytes];
char learner_block[learn_exec_bytes - learn_arena_bytes];
double arena[(ARENA + sizeof(double) - 1) / sizeof(double)];
gckpt_store *store;
gckpt_exec *ears, *learner;

float sound[KEYWORD_FRAMES * KEYWORD_NUMBERS];
float features[WORDS][FEATURES]; // what the convolutions made of the words to learn

// What the library refuses it says by a number of gradckpt.h; the LED stays dark.
void stopUnless(bool fine, int result) {
  if (fine)
    return;
  Serial.print("refused: ");
  Serial.println(result);
  for (;;)
    delay(1000);
}

gckpt_exec *executor(const gckpt_plan &plan, void *block, size_t size) {
  gckpt_result result = gckpt_plan_params(&plan, store);
  stopUnless(result == GCKPT_OK, result);
  gckpt_exec_desc desc = gckpt_exec_desc();
  desc.memory.memory = block;
  desc.memory.size = size;
  desc.arena = arena;
  desc.arena_size = sizeof arena;
  gckpt_exec *made = gckpt_exec_new(&plan, store, &desc);
  stopUnless(made, gckpt_error(store));
  return made;
}

// The number of the word that `sound` is taken for.
int heardWord() {
  const gckpt_feed feed = { recognise_heard, sound };
  gckpt_result result = gckpt_forward(ears, &feed, 1, 1, NULL);
  stopUnless(result == GCKPT_OK, result);
  const float *scores = gckpt_fetch(ears, recognise_scores, 0);
  int best = 0;
  for (int i = 1; i < WORDS; i++)
    if (scores[i] > scores[best])
      best = i;
  return best;
}

// How many of the words that it has not learned from it hears right.
void printRight(const char *when) {
  int right = 0;
  for (int i = 0; i < TAKES * WORDS; i++) {
    keyword_synth(i % WORDS, OWNER, ACCENT, TESTS + i / WORDS, sound);
    right += heardWord() == i % WORDS;
  }
  Serial.print(when);
  Serial.print(right);
  Serial.print(" right of ");
  Serial.println(TAKES * WORDS);
}

// Each word is heard once a take; then the last layer learns from what was made of it.
void learnWords() {
  static const int32_t words[WORDS] = { 0, 1, 2, 3, 4, 5, 6, 7 };
  const gckpt_feed feeds[] = { { learn_features, features }, { learn_meant, words } };
  const gckpt_hyper sgd = gckpt_hyper_lr(0.01f);
  gckpt_report report;
  for (int take = 0; take < TAKES; take++) {
    for (int word = 0; word < WORDS; word++) {
      keyword_synth(word, OWNER, ACCENT, take, sound);
      heardWord();
      memcpy(features[word], gckpt_fetch(ears, recognise_features, 0), sizeof features[0]);
    }
    for (int round = 0; round < ROUNDS; round++) {
      gckpt_result result = gckpt_step(learner, feeds, 2, WORDS, &sgd, &report);
      stopUnless(result == GCKPT_OK, result);
    }
    Serial.print("loss ");
    Serial.println(report.loss, 4);
  }
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
  gckpt_result result = weights_bind(store);
  stopUnless(result == GCKPT_OK, result);
  ears = executor(recognise, ears_block, sizeof ears_block);
  learner = executor(learn, learner_block, sizeof learner_block);
  printRight("before: ");
  learnWords();
  printRight("after: ");
  printHash();
}

void loop() {
  static uint32_t take = 0;
  const int said = take * 5 % WORDS;
  keyword_synth(said, OWNER, ACCENT, 2 * TESTS + take, sound);
  take++;
  const int heard = heardWord();
  Serial.print(names[said]);
  Serial.print(" heard as ");
  Serial.println(names[heard]);
  digitalWrite(LED_BUILTIN, heard == said ? HIGH : LOW);
  delay(300);
  digitalWrite(LED_BUILTIN, LOW);
  delay(200);
}
