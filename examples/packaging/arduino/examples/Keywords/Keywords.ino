/* Keywords - recognises words by a convolutional network that was trained on six of them on a
 * computer, and learns two more, and your accent, on the board. The convolutions stay in flash as
 * bytes, and only the last layer is trained. The LED is on while a word is recognised.
 *
 * keyword.h replaces a microphone and its front end, ten numbers per frame of sound: it generates
 * words by a formula. plan.h has the weights and two plans over them, recognise and learn; a
 * program in extras/ printed it on a computer. parts.h omits the parts of the library that these
 * plans do not need. */
#pragma GCC optimize("fp-contract=off") // a*b+c is rounded the same way on every board
#include "parts.h"
#define GCKPT_SMALL             // omits error texts and other parts: less flash
#define GCKPT_STATIC            // no other file calls the library: less flash
#define GRADCKPT_IMPLEMENTATION // the library's code is compiled here
#include <gradckpt.h>
#include "plan.h"
#include "keyword.h"

const int WORDS = 8, FEATURES = 32;     // must equal the numbers in extras/keyword.c
// TAKES: training utterances of each word; ROUNDS: training steps per utterance
const int TAKES = 3, ROUNDS = 20;
const char *const names[WORDS] = { "yes", "no", "up", "down", "left", "right", "lamp", "fan" };
// OWNER: the speaker number of your voice; TESTS: first utterance that is only used for tests
const uint32_t OWNER = 500, TESTS = 100;
const int32_t ACCENT = 56;
const size_t ARENA = recognise_arena_bytes > learn_arena_bytes ? recognise_arena_bytes
                                                               : learn_arena_bytes;

// Memory for the last layer's store, for the two executors, and for the arena that both
// executors use.
char store_block[recognise_store_bytes - weights_bytes];
char ears_block[recognise_exec_bytes - recognise_arena_bytes];
char learner_block[learn_exec_bytes - learn_arena_bytes];
double arena[(ARENA + sizeof(double) - 1) / sizeof(double)];
gckpt_store *store;
gckpt_exec *ears, *learner;

float sound[KEYWORD_FRAMES * KEYWORD_NUMBERS];
// outputs of the convolutions, one row per word, on which the last layer is trained
float features[WORDS][FEATURES];

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

// Returns the number of the word that the network recognises in `sound`.
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

// Prints how many of the test utterances the network recognises.
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

// For each utterance number, computes the convolutions' outputs of all words once, then trains
// the last layer on them.
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
