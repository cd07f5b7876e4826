# Of gradckpt.h, the copy that tests look into: what is static has a linkage that their builds choose.
# GCKPTI_INSIDE of functions: none where the implementation is compiled, once; gnu_inline in a test, which
# then has all bodies to read and compiles none. GCKPTI_TABLES of the tables whose address tells what
# they are: weak in both, so that the linker keeps one. Other tables and inline functions stay static.
1i\
#pragma GCC system_header
s/^\( *\)static const \(gckpt_op\|gckpt_backend\|gckpti_kernels\|gckpti_mixed_kernels\) \([^*]\)/\1GCKPTI_TABLES const \2 \3/
/^static \(inline\|void (\*const\)/!s/^static \([^=]*(\)/GCKPTI_INSIDE \1/
s/^    static \([a-z0-9_]* gckpti_[a-z_]*##\)/    GCKPTI_INSIDE \1/
