/* actor.cpp - an actor and a critic (Williams 1992, Konda & Tsitsiklis 2000) in C++17: 16 walkers
 * learn the way through a 5 x 5 grid, from one corner to the other. The policy's gradient is that of
 * a cross-entropy to what they did, weighted by how much better it was than the critic thought. */
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "layers.h"
#include <cstdio>
#include <memory>

constexpr int side = 5, walkers = 16, steps = 16, rows = steps * walkers;

struct freed {
    void operator()(gckpt_store *p) const { gckpt_store_free(p); }
    void operator()(gckpt_graph *p) const { gckpt_graph_free(p); }
    void operator()(gckpt_exec *p) const { gckpt_exec_free(p); }
};
template <class T> using owned = std::unique_ptr<T, freed>;

struct net {
    gckpt_tensor *place, *policy, *value; /* (n), logits (n,4), (n) */
    net(gckpt_graph *g, int64_t n)
    {
        place = gckpt_input(g, "place", GCKPT_I32, gckpt_shape1(n));
        auto *h = gckpt_tanh(layers_embed(place, "place", side * side, 32));
        policy = layers_dense(h, "policy", 4);
        value = gckpt_sum(layers_dense(h, "value", 1), 1);
    }
};

int main()
{
    owned<gckpt_store> s(gckpt_store_new(nullptr));
    owned<gckpt_graph> g(gckpt_graph_new(s.get(), nullptr)), a(gckpt_graph_new(s.get(), nullptr));
    net learns(g.get(), rows), acts(a.get(), walkers);
    auto *did = gckpt_input(g.get(), "did", GCKPT_I32, gckpt_shape1(rows));
    auto *better = gckpt_input(g.get(), "better", GCKPT_F32, gckpt_shape1(rows));
    auto *worth = gckpt_input(g.get(), "worth", GCKPT_F32, gckpt_shape1(rows));
    auto *log_p = gckpt_log_softmax(learns.policy), *p = gckpt_exp(log_p);
    gckpt_term terms[] = { { gckpt_cross_entropy_with(learns.policy, did, better, 0), 1, 0 },
                           { gckpt_mean_squared_error(learns.value, worth), 0.5f, 0 },
                           { gckpt_sum_loss(gckpt_mul(p, log_p)), 0.04f, 0 } }; /* - entropy */
    gckpt_pick picks[] = { { gckpt_softmax(acts.policy), 0 }, { acts.value, 0 } };
    gckpt_plan_desc desc{};
    auto *plan = gckpt_plan_new(g.get(), terms, 3, &desc);
    desc.mode = GCKPT_INFERENCE, desc.fetch = picks, desc.fetches = 2;
    auto *act_plan = gckpt_plan_new(a.get(), nullptr, 0, &desc);
    owned<gckpt_exec> trainer(gckpt_exec_new(plan, s.get(), nullptr));
    owned<gckpt_exec> actor(gckpt_exec_new(act_plan, s.get(), nullptr));
    gckpt_plan_free(plan), gckpt_plan_free(act_plan); /* executors have copies */

    static int32_t place[steps + 1][walkers], action[steps][walkers];
    static float value[steps + 1][walkers], reward[steps][walkers], gain[steps][walkers],
        target[steps + 1][walkers];
    const gckpt_feed feeds[] = { { gckpt_id(learns.place), place }, { gckpt_id(did), action },
                                 { gckpt_id(better), gain }, { gckpt_id(worth), target } };
    uint32_t state = 1;
    int arrived = 0, failed = !trainer || !actor;
    for (int update = 0; update < 400 && !failed; update++) {
        arrived = 0;
        for (int t = 0; t <= steps && !failed; t++) {
            const gckpt_feed feed = { gckpt_id(acts.place), place[t] };
            failed = gckpt_forward(actor.get(), &feed, 1, walkers, nullptr) != GCKPT_OK;
            const float *chance = gckpt_fetch(actor.get(), gckpt_id(picks[0].tensor), 0);
            for (int w = 0; w < walkers && !failed; w++, chance += 4) {
                value[t][w] = target[t][w] = gckpt_fetch(actor.get(), gckpt_id(acts.value), 0)[w];
                if (t == steps)
                    continue;
                state = state * 1664525u + 1013904223u;
                float u = static_cast<float>(state >> 8) / 16777216;
                int m = 0, x = place[t][w] % side, y = place[t][w] / side;
                while (m < 3 && u >= chance[m])
                    u -= chance[m++];
                x += (m == 0 && x < side - 1) - (m == 1 && x > 0);
                y += (m == 2 && y < side - 1) - (m == 3 && y > 0);
                const bool there = x == side - 1 && y == side - 1;
                action[t][w] = m;
                reward[t][w] = there ? 1.0f : 0.0f;
                place[t + 1][w] = there ? 0 : x + side * y; /* and again from the beginning */
                arrived += there;
            }
        }
        for (int t = steps; t-- > 0;)
            for (int w = 0; w < walkers; w++) {
                target[t][w] = reward[t][w] > 0 ? 1 : 0.95f * target[t + 1][w];
                gain[t][w] = target[t][w] - value[t][w];
            }
        const gckpt_hyper hyper = gckpt_hyper_lr(1e-2f);
        failed |= gckpt_step(trainer.get(), feeds, 4, rows, &hyper, nullptr) != GCKPT_OK;
        for (int w = 0; w < walkers; w++)
            place[0][w] = place[steps][w];
    }
    std::printf("%d arrivals in %d steps (at best %d)%s\n", arrived, rows, rows / 8,
                failed ? ": failed" : "");
    return failed || arrived < 24;
}
