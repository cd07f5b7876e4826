#ifndef GCKPT_NO_ATTENTION
static const gckpti_attention_loops V(attention_loops) = {
    V(rotary_row),
    { { V(attention_forward), GCKPTI_IF_TRAINING(V(attention_backward)) },
      { GCKPTI_IF_MIXED(V(mixed_forward)),
        GCKPTI_IF_MIXED(GCKPTI_IF_TRAINING(V(mixed_backward))) } },
    GCKPTI_IF_TRAINING(V(mask_gradient))
};
#endif
