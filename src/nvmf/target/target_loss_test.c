/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a target tells of controllers that it lost: once each, with the cause, and not of ends that
 * a host announced.
 */
#include "nvmf/target/target_test.h"

static void expect_loss(struct rig *rig, uint16_t qid, bool keep_alive, icms_err why)
{
    struct nvmf_target_loss loss;
    uint64_t missed;

    rig_run(rig, 20);
    assert_true(nvmf_target_loss_take(rig->target, &loss, &missed));
    assert_int_equal(missed, 0);
    assert_string_equal(loss.hostnqn, "nqn.2026-01.io.icms:test-host");
    assert_int_equal(loss.qid, qid);
    assert_int_equal(loss.keep_alive, keep_alive);
    if (!keep_alive)
        assert_int_equal(loss.why, why);
    assert_false(nvmf_target_loss_take(rig->target, &loss, &missed));
}

static void expect_no_loss(struct rig *rig)
{
    struct nvmf_target_loss loss;
    uint64_t missed;

    rig_run(rig, 20);
    assert_false(nvmf_target_loss_take(rig->target, &loss, &missed));
}

static void a_lost_controller_is_told_once_with_its_cause(void **state)
{
    struct rig *rig = rig_new(2, NULL);
    struct peer *admin, *io[3];
    union nvme_tcp_pdu pdu;

    for (int round = 0; round < 3; round++) {
        admin = rig_peer(rig);
        admin->kato_ms = round == 0 ? 1000 : 0;
        assert_true(peer_admin(admin, 0));
        for (int i = 0; i < 3; i++)
            io[i] = rig_io(rig, admin, (uint16_t)(i + 1), 0);
        if (round == 0) {
            rig_run(rig, 3000);
            expect_loss(rig, 0, true, ICMS_DEADLINE);
        } else if (round == 1) {
            peer_free(&admin);
            expect_loss(rig, 0, false, ICMS_RESET);
        } else {
            /* A queue breaks first; the host gives up the rest because of that. */
            nvme_tcp_data_encode(&pdu, NVME_TCP_H2C_DATA, 0, 1, 1, 0, 4);
            assert_true(peer_send_pdu(io[1], &pdu, "abcd", 4));
            rig_run(rig, 1000);
            expect_no_loss(rig);
            peer_free(&io[0]);
            peer_free(&admin);
            expect_loss(rig, 2, false, ICMS_PROTOCOL);
        }
        for (int i = 0; i < 3; i++)
            peer_free(&io[i]);
        peer_free(&admin);
        expect_no_loss(rig);
    }
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void an_end_that_a_host_announced_is_no_loss(void **state)
{
    struct rig *rig = rig_new(2, NULL);
    struct peer *admin, *io;

    for (int round = 0; round < 4; round++) {
        admin = round == 2 ? rig_discovery_peer(rig) : rig_peer(rig);
        assert_true(peer_admin(admin, 0));
        io = round == 2 ? NULL : rig_io(rig, admin, 1, 0);
        if (round == 0) {
            peer_free(&io); /* as Linux does it: the I/O queues first */
            assert_int_equal(rig_cc_set(admin, NVME_CC_START | NVME_CC_SHN_NORMAL),
                             NVME_SC_SUCCESS);
        } else if (round == 1) {
            assert_int_equal(rig_cc_set(admin, 0), NVME_SC_SUCCESS);
        } else if (round == 3) {
            nvmf_target_drain(rig->target);
            rig_run(rig, 500);
        }
        peer_free(&admin);
        expect_no_loss(rig);
        peer_free(&io);
        expect_no_loss(rig);
    }
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* What is not taken in time is counted, not kept. */
static void many_losses_are_bounded(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct nvmf_target_loss loss;
    uint64_t missed, missed_all = 0;
    int taken = 0;

    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 20; i++) {
            struct peer *admin = rig_admin(rig, 0);

            peer_free(&admin);
            rig_run(rig, 5);
        }
        rig_run(rig, 100);
        while (nvmf_target_loss_take(rig->target, &loss, &missed)) {
            missed_all += missed;
            taken++;
        }
    }
    assert_int_equal(taken + missed_all, 40);
    assert_int_equal(taken, 16);
    rig_expect_clean(rig);
    rig_free(&rig);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lost_controller_is_told_once_with_its_cause),
        cmocka_unit_test(an_end_that_a_host_announced_is_no_loss),
        cmocka_unit_test(many_losses_are_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
