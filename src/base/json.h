/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/json.h: writes JSON into memory of the caller. Nothing is allocated; nothing fails.
 *
 * Like snprintf: what does not fit is left out, and the length of the whole is known in any case.
 * So a text is measured with no memory (NULL, 0), or written into what is surely enough. A text
 * that was cut is no JSON.
 *
 *   json_init(&json, out, bytes);
 *   json_put_object(&json, NULL);
 *   json_put_uint(&json, "blocks", 7);
 *   json_put_end(&json);
 *   if (json_finish(&json) >= bytes) ...
 *
 * The name of a value is NULL in an array and at the top. Names and strings are UTF-8: quotes,
 * backslashes and control characters are escaped, and each byte that is not UTF-8 is written as
 * U+FFFD, so the text is JSON whatever the strings are. One thread at a time.
 */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JSON_DEPTH_MAX 32

struct json {
    char *out;        /* the caller's; NULL: the text is only measured           */
    size_t bytes;     /* of out, with the zero at the end                        */
    size_t length;    /* of the text so far, also of what did not fit; no zero   */
    unsigned depth;   /* objects and arrays that are open                        */
    uint32_t objects; /* bit i: the one at depth i is an object                  */
    bool comma;       /* the next value follows another one                      */
};

/* bytes may be 0, and out then NULL. The text is zero-terminated at any time, unless bytes is 0. */
void json_init(struct json *json, char *out, size_t bytes);

/* All are closed: the length of the text without the zero. It was cut when this is not less than
 * the bytes of json_init. */
size_t json_finish(struct json *json);

/* Opens an object, an array, JSON_DEPTH_MAX deep at most; closes the last one that is open. */
void json_put_object(struct json *json, const char *name);
void json_put_array(struct json *json, const char *name);
void json_put_end(struct json *json);

/* text: zero-terminated. */
void json_put_string(struct json *json, const char *name, const char *text);
void json_put_uint(struct json *json, const char *name, uint64_t value);
void json_put_bool(struct json *json, const char *name, bool value);

/* With three decimals and a point, whatever the locale; null when it is negative, no number, or not
 * below 10^15. */
void json_put_real(struct json *json, const char *name, double value);

#endif
