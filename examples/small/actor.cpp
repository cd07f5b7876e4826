/* actor.cpp - reinforcement learning in C++17 with an actor and a critic (Williams 1992, Konda &
 * Tsitsiklis 2000): 16 walkers learn to reach the end of a corridor. The loss of the actor is the
 * cross-entropy with the chosen actions, weighted by the outcome minus the critic's estimate. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "../layers.h"
#include <cstring>
#include <memory>

constexpr int last = 7, walkers = 16, steps = 32, rows = steps * walkers; /* places: 0 to last */

struct net {
    gckpt_tensor *place, *policy, *value; /* shapes: place (n), policy logits (n,2), value (n) */
    net(gckpt_graph *g, int64_t n) : place(gckpt_input(g, "place", GCKPT_I32, gckpt_shape1(n)))
    {
        auto *h = gckpt_tanh(layers_embed(place, "place", last + 1, 32));
        policy = layers_dense(h, "policy", 2);
        value = gckpt_sum(layers_dense(h, "value", 1), 1);
    }
};

int main()
{
    std::shared_ptr<gckpt_store> s(gckpt_store_new(nullptr), gckpt_store_free);
    gckpt_graph *g = gckpt_graph_new(s.get(), nullptr), *a = gckpt_graph_new(s.get(), nullptr);
    net train_net(g, rows), act_net(a, walkers);
    auto in = [g](const char *name, gckpt_type type) {
        return gckpt_input(g, name, type, gckpt_shape1(rows));
    };
    auto *action_in = in("did", GCKPT_I32), *advantage_in = in("gain", GCKPT_F32),
         *return_in = in("worth", GCKPT_F32);
    auto *log_p = gckpt_log_softmax(train_net.policy), *p = gckpt_exp(log_p);
    gckpt_term terms[] = { { gckpt_cross_entropy(train_net.policy, action_in, advantage_in, 0), 1, 0 },
                           { gckpt_mean_squared_error(train_net.value, return_in, NULL), 0.5f, 0 },
                           { gckpt_sum_loss(gckpt_mul(p, log_p)), 0.04f, 0 } }; /* -entropy */
    gckpt_fetch_spec fetches[] = { { gckpt_softmax(act_net.policy), 0 }, { act_net.value, 0 } };
    gckpt_plan_desc desc{};
    gckpt_plan *learning = gckpt_plan_new(g, terms, 3, &desc);
    desc.mode = GCKPT_INFERENCE, desc.fetch.specs = fetches, desc.fetch.count = 2;
    gckpt_plan *acting = gckpt_plan_new(a, nullptr, 0, &desc);
    std::shared_ptr<gckpt_exec> critic(gckpt_exec_new(learning, s.get(), nullptr), gckpt_exec_free);
    gckpt_exec_desc first{};
    first.allow_initial = 1; /* the actor may run on initial weights, before the first update */
    std::shared_ptr<gckpt_exec> actor(gckpt_exec_new(acting, s.get(), &first), gckpt_exec_free);
    static int32_t place[steps + 1][walkers], action[steps][walkers];
    static float v[steps + 1][walkers], pi[walkers][2], returns[steps][walkers], advantage[steps][walkers];
    const gckpt_feed feeds[] = { { gckpt_id(train_net.place), place }, { gckpt_id(action_in), action },
                                 { gckpt_id(advantage_in), advantage }, { gckpt_id(return_in), returns } };
    const gckpt_hyper hyper = gckpt_hyper_lr(1e-2f);
    uint32_t state = 1;
    int arrivals = 0;
    bool ok = gckpt_collect(actor.get(), gckpt_id(fetches[0].tensor), 0, pi[0], walkers * 2) == 0;
    for (int update = 0; update < 100 && ok; update++) {
        for (int t = arrivals = 0; t <= steps && ok; t++) {
            const gckpt_feed feed = { gckpt_id(act_net.place), place[t] };
            ok = gckpt_collect(actor.get(), gckpt_id(act_net.value), 0, v[t], walkers) == GCKPT_OK &&
                 gckpt_forward(actor.get(), &feed, 1, walkers, nullptr) == GCKPT_OK;
            for (int w = 0; w < walkers && t < steps; w++) {
                state = state * 1664525u + 1013904223u;
                const int32_t at = place[t][w];
                action[t][w] = static_cast<float>(state >> 8) / 16777216 >= pi[w][0];
                place[t + 1][w] = at == last ? 0 : action[t][w] ? at + 1 : at - (at > 0);
                arrivals += at == last; /* counts the walkers at the end; they restart at place 0 */
            }
        }
        for (int t = steps; t-- > 0;)
            for (int w = 0; w < walkers; w++) {
                returns[t][w] =
                    place[t][w] == last ? 1 : 0.95f * (t + 1 < steps ? returns[t + 1] : v[steps])[w];
                advantage[t][w] = returns[t][w] - v[t][w];
            }
        ok = ok && gckpt_step(critic.get(), feeds, 4, rows, &hyper, nullptr) == GCKPT_OK;
        memcpy(place[0], place[steps], sizeof place[0]);
    }
    printf("%d arrivals in %d steps (at best %d); %s\n", arrivals, rows, rows / (last + 1),
           gckpt_error_text(critic ? static_cast<void *>(critic.get()) : s.get()));
    gckpt_plan_free(learning), gckpt_plan_free(acting), gckpt_graph_free(g), gckpt_graph_free(a);
    return !ok || arrivals < rows / (last + 2);
}
