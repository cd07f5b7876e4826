/* The table of kernels of one instruction set, in the order of gckpti_kernels (ops/kernels.h). */
#define GCKPTI_TRAINED(name) GCKPTI_IF_TRAINING(V(name))
#define GCKPTI_KERNELS(mixed)                                                                      \
    V(product_block), V(pack), V(divide), V(dot), GCKPTI_TRAINED(update_block), V(add_into),       \
        V(elementwise), V(run_loop),                                                               \
        { { V(softmax_row), GCKPTI_TRAINED(softmax_row_grad) },                                    \
          { V(norm_row), GCKPTI_TRAINED(norm_row_grad) },                                          \
          GCKPTI_IF_ACTIVATIONS({ V(log_softmax_row), GCKPTI_TRAINED(log_softmax_row_grad) }) },   \
        V(column_sums), V(sum_from), &V(element_loss_kernels), &V(class_loss_kernels),             \
        V(few_classes), V(dropout_elements), gckpti_fp32_fast, GCKPTI_IF_MIXED(mixed),             \
        GCKPTI_IF_ATTENTION(&V(attention_loops)), GCKPTI_IF_IMAGES(&V(image_kernels)),             \
        GCKPTI_IF_RECURRENT(&V(cell_loops))
GCKPTI_DATA const gckpti_kernels V(kernels) = { GCKPTI_KERNELS(&V(mixed_kernels)) };
