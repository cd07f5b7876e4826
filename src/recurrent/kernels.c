#ifndef GCKPT_NO_RECURRENT
static const gckpti_cell_loops V(cell_loops) = { V(gru_gates),
                                                 GCKPTI_IF_TRAINING(V(gru_gate_grads)),
                                                 V(lstm_gates),
                                                 GCKPTI_IF_TRAINING(V(lstm_gate_grads)),
                                                 V(reset_gates),
                                                 V(new_gates),
                                                 GCKPTI_IF_TRAINING(V(new_gate_grads)),
                                                 GCKPTI_IF_TRAINING(V(reset_gate_grads)),
                                                 V(delta_update),
                                                 GCKPTI_IF_TRAINING(V(delta_grads)) };
#endif
