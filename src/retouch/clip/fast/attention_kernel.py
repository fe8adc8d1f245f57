"""The Triton kernel behind the backward pass of `attention`; imported only where there is a GPU."""

import triton
import triton.language as tl


@triton.jit
def attention_backward_kernel(
    query, key, value, grad, log_sum_exp, query_grad, key_grad, value_grad,
    query_b, query_h, query_n, key_b, key_h, key_n, value_b, value_h, value_n,
    grad_b, grad_h, grad_n,
    query_grad_b, query_grad_h, query_grad_n, key_grad_b, key_grad_h, key_grad_n,
    value_grad_b, value_grad_h, value_grad_n,
    heads, tokens, scale,
    rows: tl.constexpr, all_rows: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """All gradients of one head, one program per head.

    Keys and values stay in registers; queries are loaded in blocks of `rows`. Rows beyond the last
    token are loaded as zeros and add nothing. The suffixes _b, _h and _n are strides over the
    batch, the heads and the tokens.
    """
    head = tl.program_id(0).to(tl.int64)
    b, h = head // heads, head % heads
    column, key_row = tl.arange(0, width)[None, :], tl.arange(0, all_rows)[:, None]
    key_mask = key_row < tokens
    keys = tl.load(key + b * key_b + h * key_h + key_row * key_n + column, key_mask, 0.0)
    values = tl.load(value + b * value_b + h * value_h + key_row * value_n + column, key_mask, 0.0)
    key_grads = tl.zeros([all_rows, width], tl.float32)
    value_grads = tl.zeros([all_rows, width], tl.float32)
    for start in range(0, tokens, rows):
        index = start + tl.arange(0, rows)
        row, mask = index[:, None], index[:, None] < tokens
        queries = tl.load(query + b * query_b + h * query_h + row * query_n + column, mask, 0.0)
        grads = tl.load(grad + b * grad_b + h * grad_h + row * grad_n + column, mask, 0.0)
        normalizer = tl.load(log_sum_exp + head * tokens + index, index < tokens, 0.0)
        # [all_rows, rows]: the attention weights of each key and query, then their scores' gradient
        weights = tl.dot(keys, tl.trans(queries)) * scale
        weights = tl.exp2((weights - normalizer[None, :]) * 1.4426950408889634)
        value_grads += tl.dot(weights.to(keys.dtype), grads)
        weight_grads = tl.dot(values, tl.trans(grads))
        mean = tl.sum(weights * weight_grads, 0)
        score_grads = (weights * (weight_grads - mean[None, :])).to(keys.dtype)
        key_grads += tl.dot(score_grads, queries)
        query_grads = tl.trans(tl.dot(tl.trans(keys), score_grads)) * scale
        target = query_grad + b * query_grad_b + h * query_grad_h + row * query_grad_n + column
        tl.store(target, query_grads.to(keys.dtype), mask)
    target = key_grad + b * key_grad_b + h * key_grad_h + key_row * key_grad_n + column
    tl.store(target, (key_grads * scale).to(keys.dtype), key_mask)
    target = value_grad + b * value_grad_b + h * value_grad_h + key_row * value_grad_n + column
    tl.store(target, value_grads.to(keys.dtype), key_mask)
