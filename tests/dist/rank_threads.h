/* rank_threads.h - threads of this process as ranks: a transport (gckpt_transport) that can fail and that checks
 * strictly how it is used. Include after gradckpt.h. RANKS_THREADS is 1 if there are pthreads.
 *
 *     ranks_world w;  ranks_open(&w, 4);
 *     w.fault = (ranks_fault){ .rank = 2, .call = RANKS_EXCHANGE, .at = 7, .how = RANKS_HANGS };
 *     ranks_run(&w, body, context);      runs body(&w, rank, context) on 4 threads and joins them
 *     ranks_close(&w);                   CHECKs that no rank broke a rule
 *
 * The rules:
 * 1. Both peers of an exchange expect the same sizes.
 * 2. A rank has one exchange in flight at a time.
 * 3. Only the thread of a rank calls its transport.
 * 4. Until `done` returns 1, which may take some polls, send buffers do not change and receive buffers are not touched.
 *
 * The clock is the system's, but it is advanced while no rank can make progress (each one hangs, is dead or waits), so
 * that timeouts come soon, while a slow machine causes no timeouts. */
#ifndef TESTS_RANKS_H
#define TESTS_RANKS_H
#if defined(__unix__) || defined(__APPLE__)
#define RANKS_THREADS 1
#include <pthread.h>
#include <setjmp.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "check.h"

enum { RANKS_MOST = 16, RANKS_TIMEOUT = 60 };
typedef enum { RANKS_EXCHANGE, RANKS_DONE, RANKS_CALLS } ranks_call;
typedef enum {
    RANKS_FAILS,   /* this call fails, once */
    RANKS_HANGS,   /* the call does not return as long as any other rank runs */
    /* the thread ends within the call; the transport detects it, so that exchanges with this rank fail */
    RANKS_DIES,
    RANKS_VANISHES /* the thread ends as with RANKS_DIES, but the transport does not detect it */
} ranks_how;
typedef struct {
    int rank;
    ranks_call call;
    ranks_how how;
    long at; /* the faulty call, counted from 1; 0 for no fault */
} ranks_fault;

typedef struct ranks_world ranks_world;
typedef enum { RANKS_IDLE, RANKS_POSTED, RANKS_MATCHED, RANKS_COMPLETE, RANKS_FAILED } ranks_state;
typedef enum { RANKS_RUNS, RANKS_ENDED, RANKS_HUNG, RANKS_DEAD } ranks_status;
typedef struct {
    ranks_world *world;
    int number, peer; /* peer: rank of the other side of the exchange */
    ranks_state state;
    ranks_status status;
    int polls, has_given_up;
    const void *send;
    void *receive;
    size_t send_bytes, receive_bytes;
    uint64_t hash; /* hash of the bytes to send, taken when the exchange starts */
    long calls[RANKS_CALLS], ticks; /* ticks: calls of this rank's clock while w->clock is set */
    uint64_t sent;                  /* bytes sent */
    jmp_buf end;
    gckpt_transport transport;
    pthread_t thread, self; /* self: the thread's own pthread_self() */
} ranks_member;
struct ranks_world {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int size, given_up, waits; /* waits: polls by all ranks since the last event */
    int blocking;              /* if nonzero, the transport has no `done`, and `exchange` itself waits */
    int lag;                   /* largest number of polls by which `done` returns 1 too late */
    ranks_fault fault;
    double clock_offset; /* seconds added to the clock */
    int odd;      /* if nonzero, functions return 77 instead of 1 and INT_MIN instead of -1 */
    int clock;    /* fault of each rank's clock from call 20 on: 1 = the clock jumps back, 2 = stops, 3 = returns NaN */
    long wrong;   /* number of broken rules */
    char text[160];
    ranks_member rank[RANKS_MOST];
    void (*body)(ranks_world *world, int rank, void *context);
    void *context;
};

static inline void ranks_breach(ranks_member *m, const char *what, size_t a, size_t b)
{
    if (m->world->wrong++ == 0)
        snprintf(m->world->text, sizeof m->world->text, "rank %d: %s (%zu, %zu)", m->number, what,
                 a, b);
}

static inline uint64_t ranks_hash(const void *bytes, size_t n)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((const unsigned char *)bytes)[i]) * 1099511628211u;
    return h;
}

/* Wakes the waiting ranks after an event. The caller holds the lock, here and in the functions below that do not take
 * it themselves. */
static inline void ranks_changed(ranks_world *w)
{
    w->waits = 0;
    pthread_cond_broadcast(&w->changed);
}

/* Returns whether rank m's next poll, or any call that it makes before, can change the state of the world. */
static inline int ranks_can_progress(const ranks_member *m)
{
    const ranks_world *w = m->world;
    if ((m->state != RANKS_POSTED && m->state != RANKS_MATCHED) || w->given_up || w->wrong)
        return 1;
    if (m->state == RANKS_MATCHED)
        return w->rank[m->peer].status == RANKS_RUNS;
    return w->rank[m->peer].status == RANKS_DEAD;
}

/* Returns whether no running rank can make progress, so that only a timeout can end the wait. */
static inline int ranks_deadlocked(const ranks_world *w)
{
    for (int i = 0; i < w->size; i++)
        if (w->rank[i].status == RANKS_RUNS && ranks_can_progress(&w->rank[i]))
            return 0;
    return 1;
}

static inline int ranks_others_run(const ranks_member *m)
{
    int n = 0;
    for (int i = 0; i < m->world->size; i++)
        n += i != m->number && m->world->rank[i].status == RANKS_RUNS;
    return n;
}

/* Counts a call of the transport. Returns 0 if the call must fail; an exchange in flight then never arrives. */
static inline int ranks_counted(ranks_member *m, ranks_call call)
{
    ranks_world *w = m->world;
    const ranks_fault *f = &w->fault;
    if (++m->calls[call] != f->at || f->rank != m->number || f->call != call)
        return 1;
    if (m->state == RANKS_MATCHED)
        w->rank[m->peer].state = RANKS_POSTED;
    m->state = RANKS_IDLE;
    if (f->how != RANKS_FAILS)
        m->status = f->how == RANKS_DIES ? RANKS_DEAD : RANKS_HUNG;
    ranks_changed(w);
    if (f->how >= RANKS_DIES) {
        pthread_mutex_unlock(&w->lock);
        longjmp(m->end, 1);
    }
    while (f->how == RANKS_HANGS && ranks_others_run(m))
        pthread_cond_wait(&w->changed, &w->lock);
    m->status = RANKS_RUNS;
    return 0;
}

/* Completes an exchange: checks that the sent bytes have not changed since its start and that the receive buffer has
 * not been touched, and copies the bytes. */
static inline void ranks_deliver(ranks_member *from, ranks_member *to)
{
    const unsigned char *bytes = (const unsigned char *)to->receive;
    if (from->hash != ranks_hash(from->send, from->send_bytes))
        ranks_breach(from, "what it sends changed under way", from->send_bytes, 0);
    for (size_t i = 0; i < to->receive_bytes; i++)
        if (bytes[i] != 0xff) {
            ranks_breach(to, "where it receives was written meanwhile", i, to->receive_bytes);
            break;
        }
    if (from->send_bytes)
        memcpy(to->receive, from->send, from->send_bytes);
}

/* Returns after how many polls `done` returns 1 for an exchange that is matched. */
static inline int ranks_delay(const ranks_member *m)
{
    return m->world->blocking ? 0
                              : (int)((m->calls[RANKS_EXCHANGE] + m->number) % (m->world->lag + 1));
}

/* Advances the exchange of rank m, and the exchanges of other ranks that wait for it, as far as possible. */
static inline void ranks_advance(ranks_member *m)
{
    ranks_world *w = m->world;
    if ((w->given_up || w->wrong) && m->state != RANKS_COMPLETE)
        m->state = RANKS_FAILED;
    if (m->state != RANKS_POSTED && m->state != RANKS_MATCHED)
        return;
    ranks_member *p = &w->rank[m->peer];
    if (p->status == RANKS_DEAD)
        m->state = RANKS_FAILED;
    if (m->state == RANKS_POSTED && p->state == RANKS_POSTED && p->peer == m->number) {
        if (m->send_bytes != p->receive_bytes || p->send_bytes != m->receive_bytes)
            ranks_breach(m, "sends another size than its peer expects", m->send_bytes,
                         p->receive_bytes);
        m->state = p->state = RANKS_MATCHED;
        m->polls = p->polls = 0;
        ranks_changed(w);
    }
    if (m->state == RANKS_MATCHED && p->status == RANKS_RUNS && m->polls >= ranks_delay(m) &&
        p->polls >= ranks_delay(p)) {
        ranks_deliver(m, p);
        ranks_deliver(p, m);
        m->state = p->state = RANKS_COMPLETE;
        ranks_changed(w);
    }
}

/* Waits a little for other ranks; if no rank can make progress, advances the clock so that a timeout comes. */
static inline void ranks_wait(ranks_world *w)
{
    struct timespec until;
    if (ranks_deadlocked(w)) {
        w->clock_offset += RANKS_TIMEOUT / 4.0;
        if (++w->waits > 4000) {
            fprintf(stderr, "ranks wait for each other in spite of the timeout\n");
            exit(1);
        }
        return;
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 2000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&w->changed, &w->lock, &until);
}

static inline void ranks_called(ranks_member *m)
{
    if (!pthread_equal(pthread_self(), m->self))
        ranks_breach(m, "another thread calls its transport", 0, 0);
}

/* Returns 1 if the exchange is complete, 0 if it is in flight, -1 if it failed. */
static inline int ranks_test(ranks_member *m)
{
    m->polls++;
    ranks_advance(m);
    if (m->state == RANKS_COMPLETE || m->state == RANKS_FAILED) {
        int done = m->state == RANKS_COMPLETE ? 1 : -1;
        m->state = RANKS_IDLE;
        return done;
    }
    return 0;
}

static inline int ranks_post(ranks_member *m, ranks_call call, int peer, const void *send,
                             size_t send_bytes, void *receive, size_t receive_bytes)
{
    ranks_world *w = m->world;
    const char *to = (const char *)receive, *from = (const char *)send;
    int result = 1;
    pthread_mutex_lock(&w->lock);
    ranks_called(m);
    if (m->state != RANKS_IDLE)
        ranks_breach(m, "begins something while something is under way", 0, 0);
    if (m->has_given_up)
        ranks_breach(m, "goes on after it gave up", 0, 0);
    if (peer == m->number || peer >= w->size)
        ranks_breach(m, "no such peer", (size_t)peer, (size_t)w->size);
    if (call == RANKS_EXCHANGE && send_bytes && receive_bytes && to < from + send_bytes &&
        from < to + receive_bytes)
        ranks_breach(m, "receives where it sends from", send_bytes, receive_bytes);
    if (ranks_counted(m, call) && !w->wrong && !w->given_up) {
        m->state = RANKS_POSTED;
        m->peer = peer;
        m->send = send;
        m->receive = receive;
        m->send_bytes = send_bytes;
        m->receive_bytes = receive_bytes;
        m->polls = 0;
        if (peer >= 0) {
            m->hash = ranks_hash(send, send_bytes);
            if (receive_bytes)
                memset(receive, 0xff, receive_bytes);
            m->sent += send_bytes;
        }
        ranks_changed(w);
        ranks_advance(m);
        while (w->blocking && m->state == RANKS_POSTED && !ranks_deadlocked(w))
            pthread_cond_wait(&w->changed, &w->lock), ranks_advance(m);
        if (w->blocking)
            result = m->state == RANKS_COMPLETE, m->state = RANKS_IDLE, ranks_changed(w);
    } else {
        result = 0;
    }
    pthread_mutex_unlock(&w->lock);
    return result;
}

/* Returns another value with the same meaning as `result`: 77 instead of 1, INT_MIN instead of -1. */
static inline int ranks_odd_result(void *user, int result)
{
    const int odd = ((ranks_member *)user)->world->odd;
    return !odd || !result ? result : result < 0 ? INT_MIN : 77;
}

static inline int ranks_exchange(void *user, int peer, const void *send, size_t send_bytes,
                                 void *receive, size_t receive_bytes)
{
    return ranks_odd_result(user, ranks_post((ranks_member *)user, RANKS_EXCHANGE, peer, send,
                                        send_bytes, receive, receive_bytes));
}

static inline int ranks_done(void *user)
{
    ranks_member *m = (ranks_member *)user;
    pthread_mutex_lock(&m->world->lock);
    ranks_called(m);
    if (m->state == RANKS_IDLE)
        ranks_breach(m, "asks for what is not under way", 0, 0);
    int result = ranks_counted(m, RANKS_DONE) ? ranks_test(m) : -1;
    if (result == 0 && m->polls > 8 + ranks_delay(m))
        ranks_wait(m->world);
    pthread_mutex_unlock(&m->world->lock);
    return ranks_odd_result(user, result);
}

/* The transport's `enqueue`, for a backend whose calls are complete when they return: does the exchange at once. */
static inline int ranks_enqueue(void *user, void *queue, int peer, const void *send, size_t send_bytes,
                                void *receive, size_t receive_bytes)
{
    const ranks_member *m = (const ranks_member *)user;
    int done = ranks_exchange(user, peer, send, send_bytes, receive, receive_bytes);
    for (int waits = done && !m->world->blocking; waits;)
        done = ranks_done(user), waits = done == 0;
    return done > 0 && queue != NULL;
}
static inline int ranks_enqueued_done(void *user) { return user != NULL; }

static inline void ranks_give_up(void *user)
{
    ranks_member *m = (ranks_member *)user;
    pthread_mutex_lock(&m->world->lock);
    m->has_given_up = m->world->given_up = 1;
    ranks_changed(m->world);
    pthread_mutex_unlock(&m->world->lock);
}

static inline double ranks_clock(void *user)
{
    ranks_member *m = (ranks_member *)user;
    ranks_world *w = m->world;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    pthread_mutex_lock(&w->lock);
    double seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec + w->clock_offset;
    if (w->clock && ++m->ticks > 20)
        seconds = w->clock == 1 ? seconds - 1e9 : w->clock == 2 ? 0 : (double)NAN;
    pthread_mutex_unlock(&w->lock);
    return seconds;
}

static inline void ranks_open(ranks_world *w, int size)
{
    memset(w, 0, sizeof *w);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    w->size = size;
    w->lag = 2;
    for (int i = 0; i < size; i++) {
        w->rank[i].world = w;
        w->rank[i].number = i;
        w->rank[i].transport = (gckpt_transport){ .rank = i,
                                           .size = size,
                                           .exchange = ranks_exchange,
                                           .done = ranks_done,
                                           .abort = ranks_give_up,
                                           .clock = ranks_clock,
                                           .timeout = RANKS_TIMEOUT,
                                           .user = &w->rank[i] };
    }
}

static void *ranks_thread(void *user)
{
    ranks_member *m = (ranks_member *)user;
    m->self = pthread_self();
    if (setjmp(m->end) == 0)
        m->world->body(m->world, m->number, m->world->context);
    pthread_mutex_lock(&m->world->lock);
    if (m->status == RANKS_RUNS && m->state != RANKS_IDLE && !m->world->given_up &&
        m->world->fault.at == 0)
        ranks_breach(m, "ended while something was under way", 0, 0);
    m->status = m->status == RANKS_RUNS ? RANKS_ENDED : m->status;
    ranks_changed(m->world);
    pthread_mutex_unlock(&m->world->lock);
    return NULL;
}

static inline void ranks_run(ranks_world *w, void (*body)(ranks_world *, int, void *),
                             void *context)
{
    w->body = body;
    w->context = context;
    for (int i = 0; i < w->size; i++) {
        w->rank[i].status = RANKS_RUNS;
        w->rank[i].transport.done = w->blocking ? NULL : ranks_done;
    }
    for (int i = 0; i < w->size; i++)
        if (pthread_create(&w->rank[i].thread, NULL, ranks_thread, &w->rank[i])) {
            fprintf(stderr, "no thread for rank %d\n", i);
            exit(1);
        }
    for (int i = 0; i < w->size; i++)
        pthread_join(w->rank[i].thread, NULL);
}

static inline void ranks_close(ranks_world *w)
{
    CHECK_MSG(w->wrong == 0, "%ld breaches of the transport's contract, first: %s", w->wrong, w->text);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
}
#else
#define RANKS_THREADS 0
#endif
#endif
