#if defined(GCKPT_NO_ATTENTION) && !defined(GCKPT_NO_CACHES)
#define GCKPT_NO_CACHES
#endif
#ifndef GCKPT_NO_CACHES
/* Key/value cache: x (B,T,C) -> (B,capacity,C): the rows that earlier calls of gckpt_forward wrote,
 * then the T rows of x; causal attention ignores the rest. With it a model generates token by
 * token, with the bits of one call with all tokens. Only causal attention without lengths (as k, v,
 * decay and beta), gckpt_concat along axis 1 (as its last input) and gckpt_slice along axis 1, up
 * to its end, may read it; the slice's last row is the one written last (0 before any). In a graph
 * with caches, gckpt_rotary and gckpt_positions add gckpt_position to their first position, up to
 * the capacity. Only INFERENCE plans may have caches; a call takes at most the graph's rows; all
 * caches of a graph have one capacity and one T. The executor holds them in the precision of the
 * plan's activations; their bytes are GCKPT_BYTES_CACHES. With gckpt_exec_desc.caches_of it uses
 * and continues those of another executor of the same store, rows, capacity and backend: e.g. one
 * for prompts, one for single tokens. That one must outlive it; one of them runs at a time; each
 * plan counts the bytes. */
GCKPT_API gckpt_tensor *gckpt_cache(gckpt_tensor *x, int64_t capacity);
/* Key/value cache for attention with windows of `window` keys or fewer: the cache holds `rows` =
 * window + 63 keys, rounded up to a multiple of 64, for positions up to capacity. If window is 0 or
 * rows >= capacity, it works as gckpt_cache. x (B,T,C) -> (B,rows,C), position p in row p % rows.
 * A call may add rows - window + 1 positions, at least 64 (if one attention has a longer window w,
 * rows - w + 1), so longer prompts need several calls. gckpt_concat refuses it. A graph may have
 * caches of both kinds. The gated delta rule keeps a state (f32) of the steps that a cache forgets;
 * with it, or a slice, a call may add rows / 2 positions. */
GCKPT_API gckpt_tensor *gckpt_cache_window(gckpt_tensor *x, int64_t capacity, int64_t window);

/* gckpt_position returns the number of positions in the caches. Each successful gckpt_forward adds
 * its T; it returns E_ARG if that exceeds the capacity, or if it has more rows than the last call.
 * gckpt_rewind forgets positions from `position` on (after 0 any number of rows may follow). It
 * returns E_ARG if there are fewer positions, or if a gckpt_cache_window has overwritten keys that
 * this executor's attention needs there: it can go back by up to rows - window + 1 from the highest
 * position reached, with the cache's rows and attention's window; for a slice or the gated delta
 * rule, to where the last call began. Another executor checks for its own windows when it runs. */
GCKPT_API int64_t gckpt_position(const gckpt_exec *exec);
GCKPT_API gckpt_result gckpt_rewind(gckpt_exec *exec, int64_t position);
#endif
