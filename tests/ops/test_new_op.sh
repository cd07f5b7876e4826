#!/bin/sh
# Adds an elementwise op, softsign, to a copy of the tree by the steps of docs/architecture.md, and checks that at most
# four files change and that everything else follows from them: the builder, plain and vector kernels, descriptor,
# CUDA's kernels, the row of docs/ops.md, the entries of tests' lists and of the contract in Python.
work=build/new_op
. tests/checks.sh

tree=$work/tree
mkdir -p "$tree/build" "$work/before"
cp -r src tests docs examples "$tree"
cp -r src tests docs "$work/before"

# after FILE PATTERN LINES: inserts the lines after the first line that matches; fails if none does
after()
{
    awk -v pattern="$2" -v lines="$3" '{ print } !done && index($0, pattern) { print lines; done = 1 } END { exit !done }' \
        "$tree/$1" > "$work/changed" && cp "$work/changed" "$tree/$1"
}
add_op()
{
    after src/api.h '*gckpt_silu(' 'GCKPT_API gckpt_tensor *gckpt_softsign(gckpt_tensor *x); /* x / (1 + |x|) */' &&
        after src/ops/ops.h '#define GCKPTI_OPS(' '    X(softsign, CORE) \\' &&
        after src/ops/ops.h '#define GCKPTI_UNARY_OPS(' '    X(softsign, gckpti_flops_8, GCKPT_IN(0), x / (1.0f + V(abs)(x)), product, \\
      1.0f / ((1.0f + V(abs)(x)) * (1.0f + V(abs)(x)))) \\' &&
        after tests/unary.h '#define UNARY_TESTS(' '    X(softsign, PC_0, SMOOTH, x / (1 + fabs(x)), "F.softsign") \\' &&
        after tests/contract/ops.py 'curve("exp",' 'curve("softsign", lambda c: c.x[0] / (F(1) + np.abs(c.x[0])),
      lambda c: F(1) / ((F(1) + np.abs(c.x[0])) * (F(1) + np.abs(c.x[0]))))'
}
check "softsign is added" add_op

few_files()
{
    for folder in src tests docs; do
        diff -rq "$work/before/$folder" "$tree/$folder"
    done > "$work/files"
    cat "$work/files"
    [ "$(wc -l < "$work/files")" -le 4 ]
}
check "at most four files change" few_files

generate() { (cd "$tree" && sh src/header.sh src > gradckpt.h && sh src/header.sh src/cuda > gradckpt_cuda.cu); }
check "the headers" generate

cat > "$tree/train.c" << 'EOF'
#define GRADCKPT_IMPLEMENTATION
#include "gradckpt.h"
#include "examples/gradcheck.h"
#include "tests/check.h" /* checks the plan: what the op reads is known from tests/unary.h */
#include <math.h>

static void train(gckpt_isa isa, double *norm)
{
    float x[6 * 37], zero[6 * 37] = { 0 };
    gckpt_exec_desc desc = { 0 };
    gckpt_report report;
    gckpt_hyper hyper = { 0.1f, 0, 0, 0, 0, 0, 0 };
    desc.isa = isa;
    for (int i = 0; i < 6 * 37; i++)
        x[i] = (float)(i % 19 - 9) * 0.3f + 0.05f;
    gckpt_store *s = gckpt_store_new(NULL);
    gckpt_graph *g = gckpt_graph_new(s, NULL);
    gckpt_init init = { 0.3f, 0, 0 };
    gckpt_tensor *in = gckpt_input(g, "x", GCKPT_F32, gckpt_shape2(6, 37));
    gckpt_tensor *target = gckpt_input(g, "t", GCKPT_F32, gckpt_shape2(6, 37));
    gckpt_tensor *h = gckpt_linear(gckpt_softsign(in), gckpt_param(g, "w", gckpt_shape2(37, 37), init), NULL);
    gckpt_term term = { gckpt_mean_squared_error(gckpt_softsign(h), target, NULL), 1, 0 };
    const gckpt_feed feeds[2] = { { gckpt_id(in), x }, { gckpt_id(target), zero } };
    gckpt_plan *p = gckpt_plan_new(g, &term, 1, NULL);
    gckpt_exec *e = gckpt_exec_new(p, s, &desc);
    CHECK_MSG(p && e, "%s %s", gckpt_error_text(g), gckpt_error_text(s));
    gradcheck_result check;
    CHECK_MSG(gradcheck(s, &term, 1, NULL, feeds, 2, 6, &check) == GCKPT_OK, "%s", check.text);
    CHECK(gckpt_step(e, feeds, 2, 6, &hyper, &report) == GCKPT_OK);
    *norm = report.grad_norm;
    gckpt_exec_free(e);
    gckpt_plan_free(p);
    gckpt_graph_free(g);
    gckpt_store_free(s);
}

int main(void)
{
    double plain, fast;
    train(GCKPT_ISA_PLAIN, &plain);
    train(GCKPT_ISA_AUTO, &fast);
    CHECK(plain > 0 && !memcmp(&plain, &fast, sizeof plain));
    return check_report("softsign");
}
EOF
gradients()
{
    (cd "$tree" && ${CC:-cc} -std=gnu99 -O0 -ffp-contract=off -I. -Itests -Isrc train.c -lm -o train && ./train)
}
check "softsign's gradients are right, and plain and vector kernels agree" gradients

check "docs/ops.md gets a row" sh -c "cd '$tree' && awk -f docs/reference/ops.awk docs/reference/ops.txt gradckpt.h |
    grep -F 'gckpt_softsign(x)' | grep -F 'x / (1 + ' | grep -F 'F.softsign'"

lists()
{
    for file in plan/test_plan_check ops/test_ops ops/test_rows ops/test_special cpu/test_kernels integration/test_refusals; do
        (cd "$tree" && ${CC:-cc} -std=gnu99 -fsyntax-only -I. -Isrc -Itests -DGRADCKPT_IMPLEMENTED "tests/$file.c") || return 1
    done
}
check "the tests that go through all ops compile with it" lists

cuda() # compiles CUDA's kernels for the processor
{
    (cd "$tree" && ${CXX:-c++} -std=c++17 -fsyntax-only -DGCKPT_CUDA_SHIM -I. -include tests/cuda/cuda_shim.h -x c++ gradckpt_cuda.cu) &&
        grep -q 'GCKPTI_UNARY_OPS(UNARY)' "$tree/gradckpt_cuda.cu"
}
check "CUDA's kernels compile" cuda

contract()
{
    python3 -c 'import numpy' 2> /dev/null || return 0
    (cd "$tree/tests/contract" && python3 -c 'import golden; assert "softsign" in golden.OPS and ("softsign", "SMOOTH") in golden.UNARY')
}
check "the contract in Python has it" contract

report new_op
