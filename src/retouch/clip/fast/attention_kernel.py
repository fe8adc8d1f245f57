"""The program behind `attention`'s way back; imported where there is a GPU for it."""

import triton
import triton.language as tl


@triton.jit
def attention_backward_kernel(
    query, key, value, slope, logs, to_query, to_key, to_value,
    query_b, query_h, query_n, key_b, key_h, key_n, value_b, value_h, value_n,
    slope_b, slope_h, slope_n,
    to_query_b, to_query_h, to_query_n, to_key_b, to_key_h, to_key_n,
    to_value_b, to_value_h, to_value_n,
    heads, tokens, scale,
    rows: tl.constexpr, all_rows: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """All gradients of one head: keys and values stay, queries pass by in groups of `rows`.

    What lies behind the last token is read as zeros, and adds nothing.
    """
    head = tl.program_id(0).to(tl.int64)
    b, h = head // heads, head % heads
    one, every = tl.arange(0, width)[None, :], tl.arange(0, all_rows)[:, None]
    inside = every < tokens
    keys = tl.load(key + b * key_b + h * key_h + every * key_n + one, inside, 0.0)
    values = tl.load(value + b * value_b + h * value_h + every * value_n + one, inside, 0.0)
    of_keys = tl.zeros([all_rows, width], tl.float32)
    of_values = tl.zeros([all_rows, width], tl.float32)
    for first in range(0, tokens, rows):
        at = first + tl.arange(0, rows)
        here, there = at[:, None], at[:, None] < tokens
        queries = tl.load(query + b * query_b + h * query_h + here * query_n + one, there, 0.0)
        slopes = tl.load(slope + b * slope_b + h * slope_h + here * slope_n + one, there, 0.0)
        divided = tl.load(logs + head * tokens + at, at < tokens, 0.0)
        # [all_rows, rows]: how much each query looks at each key, and what that should change by
        looks = tl.dot(keys, tl.trans(queries)) * scale
        looks = tl.exp2((looks - divided[None, :]) * 1.4426950408889634)
        of_values += tl.dot(looks.to(keys.dtype), slopes)
        change = tl.dot(values, tl.trans(slopes))
        mean = tl.sum(looks * change, 0)
        change = (looks * (change - mean[None, :])).to(keys.dtype)
        of_keys += tl.dot(change, queries)
        of_queries = tl.trans(tl.dot(tl.trans(keys), change)) * scale
        place = to_query + b * to_query_b + h * to_query_h + here * to_query_n + one
        tl.store(place, of_queries.to(keys.dtype), there)
    place = to_key + b * to_key_b + h * to_key_h + every * to_key_n + one
    tl.store(place, (of_keys * scale).to(keys.dtype), inside)
    place = to_value + b * to_value_b + h * to_value_h + every * to_value_n + one
    tl.store(place, of_values.to(keys.dtype), inside)
