/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of DH-HMAC-CHAP: golden bytes, round trips, cuts at every length.
 */
#include "wire/test_bytes.h"

#include "wire/nvme_auth.h"

static uint8_t value[64], challenge[64], dh[1024];

static struct nvme_auth_msg message(enum nvme_auth_id id)
{
    struct nvme_auth_msg msg = {.id = id, .t_id = 0x1234};

    memset(value, 'v', sizeof(value));
    memset(challenge, 'c', sizeof(challenge));
    memset(dh, 'd', sizeof(dh));
    switch (id) {
    case NVME_AUTH_NEGOTIATE:
        msg.hash_count = 2;
        msg.hashes[0] = 3;
        msg.hashes[1] = 1;
        msg.group_count = 3;
        msg.groups[0] = 5;
        msg.groups[2] = 1;
        break;
    case NVME_AUTH_REPLY:
        msg.challenge = challenge;
        __attribute__((fallthrough));
    case NVME_AUTH_CHALLENGE:
        msg.hash = id == NVME_AUTH_CHALLENGE ? 3 : 0;
        msg.group = id == NVME_AUTH_CHALLENGE ? 5 : 0;
        msg.dh = dh;
        msg.dh_bytes = sizeof(dh);
        msg.seqnum = 0x55667788;
        __attribute__((fallthrough));
    case NVME_AUTH_SUCCESS1:
        msg.value = value;
        msg.value_bytes = 64;
        break;
    case NVME_AUTH_FAILURE1:
    case NVME_AUTH_FAILURE2:
        msg.reason = 1;
        msg.why = NVME_AUTH_WHY_PAYLOAD;
        break;
    default:
        break;
    }
    return msg;
}

static const enum nvme_auth_id ids[] = {
    NVME_AUTH_NEGOTIATE, NVME_AUTH_CHALLENGE, NVME_AUTH_REPLY,   NVME_AUTH_SUCCESS1,
    NVME_AUTH_SUCCESS2,  NVME_AUTH_FAILURE1,  NVME_AUTH_FAILURE2};

static void messages_have_their_golden_bytes(void **state)
{
    uint8_t out[NVME_AUTH_BYTES_MAX];
    struct nvme_auth_msg msg = message(NVME_AUTH_NEGOTIATE);

    assert_int_equal(nvme_auth_encode(&msg, out), 72);
    test_bytes_are(out, "00 00 0000 3412 00 01 01 00 02 03 03 01 00");
    test_bytes_are(out + 42, "05 00 01 00");
    msg = message(NVME_AUTH_CHALLENGE);
    assert_int_equal(nvme_auth_encode(&msg, out), 16 + 64 + 1024);
    test_bytes_are(out, "01 01 0000 3412 40 00 03 05 0004 88776655 76");
    test_bytes_are(out + 79, "76 64");
    msg = message(NVME_AUTH_REPLY);
    assert_int_equal(nvme_auth_encode(&msg, out), NVME_AUTH_BYTES_MAX);
    test_bytes_are(out, "01 02 0000 3412 40 00 01 00 0004 88776655 76");
    test_bytes_are(out + 79, "76 63");
    test_bytes_are(out + 143, "63 64");
    msg.challenge = NULL; /* its place stays */
    assert_int_equal(nvme_auth_encode(&msg, out), NVME_AUTH_BYTES_MAX);
    test_bytes_are(out + 8, "00");
    test_bytes_are(out + 79, "76 00");
    msg = message(NVME_AUTH_SUCCESS1);
    assert_int_equal(nvme_auth_encode(&msg, out), 80);
    test_bytes_are(out, "01 03 0000 3412 40 00 01 00000000000000 76");
    msg.value = NULL; /* its length and its place stay */
    assert_int_equal(nvme_auth_encode(&msg, out), 80);
    test_bytes_are(out, "01 03 0000 3412 40 00 00 00000000000000 00");
    msg = message(NVME_AUTH_SUCCESS2);
    assert_int_equal(nvme_auth_encode(&msg, out), 16);
    test_bytes_are(out, "01 04 0000 3412 00000000000000000000");
    msg = message(NVME_AUTH_FAILURE1);
    assert_int_equal(nvme_auth_encode(&msg, out), 8);
    test_bytes_are(out, "00 f1 0000 3412 01 06");
    msg = message(NVME_AUTH_FAILURE2);
    assert_int_equal(nvme_auth_encode(&msg, out), 8);
    test_bytes_are(out, "00 f0 0000 3412 01 06");
}

static void messages_round_trip_and_are_refused_when_cut(void **state)
{
    for (size_t i = 0; i < sizeof(ids) / sizeof(*ids); i++) {
        struct nvme_auth_msg msg = message(ids[i]), back;
        uint8_t out[NVME_AUTH_BYTES_MAX], again[NVME_AUTH_BYTES_MAX];
        size_t bytes = nvme_auth_encode(&msg, out);

        assert_int_equal(nvme_auth_decode(out, bytes, &back), ICMS_OK);
        assert_int_equal(nvme_auth_encode(&back, again), bytes);
        assert_memory_equal(again, out, bytes);
        for (size_t cut = 0; cut < bytes; cut++) {
            void *exact = test_exact(out, cut);

            back.t_id = 0x9999;
            assert_int_equal(nvme_auth_decode(exact, cut, &back), ICMS_PROTOCOL);
            assert_int_equal(back.t_id, 0x9999);
            free(exact);
        }
    }
}

static void what_makes_no_sense_is_refused(void **state)
{
    static const struct {
        enum nvme_auth_id id;
        size_t at;
        uint8_t byte;
    } bad[] = {
        {NVME_AUTH_NEGOTIATE, 0, 1},                                   /* type of another message */
        {NVME_AUTH_CHALLENGE, 0, 0},   {NVME_AUTH_CHALLENGE, 1, 0x05}, /* unknown */
        {NVME_AUTH_CHALLENGE, 6, 0},   {NVME_AUTH_CHALLENGE, 6, 33},
        {NVME_AUTH_CHALLENGE, 6, 255}, {NVME_AUTH_CHALLENGE, 11, 5}, /* a DH value of 1,280 bytes */
        {NVME_AUTH_CHALLENGE, 10, 1},  {NVME_AUTH_REPLY, 6, 0},
        {NVME_AUTH_REPLY, 8, 2},       {NVME_AUTH_REPLY, 11, 0xff},
        {NVME_AUTH_SUCCESS1, 8, 2},    {NVME_AUTH_SUCCESS1, 6, 31},
        {NVME_AUTH_NEGOTIATE, 7, 2}, /* more protocols than there are */
        {NVME_AUTH_NEGOTIATE, 10, 31}, {NVME_AUTH_NEGOTIATE, 11, 31},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct nvme_auth_msg msg = message(bad[i].id), back;
        uint8_t out[NVME_AUTH_BYTES_MAX];
        size_t bytes = nvme_auth_encode(&msg, out);

        out[bad[i].at] = bad[i].byte;
        assert_int_equal(nvme_auth_decode(out, bytes, &back), ICMS_PROTOCOL);
    }
}

static void other_protocols_of_a_negotiation_are_skipped(void **state)
{
    struct nvme_auth_msg msg = message(NVME_AUTH_NEGOTIATE), back;
    uint8_t out[NVME_AUTH_BYTES_MAX] = {0};

    (void)nvme_auth_encode(&msg, out);
    memcpy(out + 72, out + 8, 64);
    memset(out + 8, 0xff, 64);
    out[7] = 2;
    assert_int_equal(nvme_auth_decode(out, 136, &back), ICMS_OK);
    assert_int_equal(back.hash_count, 2);
    assert_int_equal(back.hashes[0], 3);
    out[7] = 1;
    assert_int_equal(nvme_auth_decode(out, 136, &back), ICMS_OK);
    assert_int_equal(back.hash_count, 0);
    out[7] = 0;
    assert_int_equal(nvme_auth_decode(out, 136, &back), ICMS_OK);
    assert_int_equal(back.group_count, 0);
}

static void commands_have_their_golden_bytes(void **state)
{
    struct nvme_sqe_wf sqe;
    uint32_t bytes = 1;

    nvme_auth_cmd_encode(true, 72, &sqe);
    test_bytes_are(&sqe, "7f40 0000 05000000");
    test_bytes_are(&sqe.cdw10, "00 01 01 e9 48000000");
    assert_int_equal(nvme_auth_cmd_decode(&sqe, &bytes), ICMS_OK);
    assert_int_equal(bytes, 72);
    nvme_auth_cmd_encode(false, 4096, &sqe);
    test_bytes_are(&sqe, "7f40 0000 06000000");
    for (int i = 1; i < 4; i++) {
        sqe.cdw10.byte[i] ^= 1;
        assert_int_equal(nvme_auth_cmd_decode(&sqe, &bytes), ICMS_INVALID);
        sqe.cdw10.byte[i] ^= 1;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_have_their_golden_bytes),
        cmocka_unit_test(messages_round_trip_and_are_refused_when_cut),
        cmocka_unit_test(what_makes_no_sense_is_refused),
        cmocka_unit_test(other_protocols_of_a_negotiation_are_skipped),
        cmocka_unit_test(commands_have_their_golden_bytes),
    };

    return cmocka_run_group_tests_name("nvme_auth", tests, NULL, NULL);
}
