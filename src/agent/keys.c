/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's TLS keys and secrets: files of each enclosure (often the same), read at start, and
 * again when that is asked for.
 *
 * On the control thread; reactors use what is replaced as a whole (crypt_tls_replace,
 * secret_replace). The key that is used with an
 * enclosure is derived from the file's, this host's NQN and the enclosure's; the file's is wiped.
 */
#include "base/check.h"
#include "crypt/dhchap.h"
#include "crypt/tls.h"
#include "agent/agent_int.h"

static icms_err key_read(const char *path, struct err_why *why, struct key_plain *out_key)
{
    struct secret *secret = NULL;
    icms_err err = secret_read_line(path, why, &secret);

    if (err == ICMS_OK)
        err = key_text_parse(KEY_TEXT_TLS, (const char *)secret_bytes(secret),
                             secret_length(secret), why, out_key);
    secret_free(&secret);
    return err;
}

icms_err agent_key_load(const char *hostnqn, const struct agent_enclosure_opts *enclosure,
                        struct err_why *why, struct crypt_tls **out_tls)
{
    struct err_why reason = {""};
    struct crypt_tls_psk psk;
    struct key_plain key;
    icms_err err;

    *out_tls = NULL;
    if (enclosure->psk == NULL)
        return ICMS_OK;
    err = key_read(enclosure->psk, &reason, &key);
    if (err == ICMS_OK) {
        err = crypt_psk_derive(&key, CRYPT_PSK_V1, hostnqn, enclosure->nqn, &psk);
        if (err == ICMS_OK)
            err = crypt_tls_client_new(&psk, &reason, out_tls);
        else
            (void)err_set(&reason, err, "%s", icms_err_text(err));
        crypt_tls_psk_wipe(&psk);
        secret_wipe(&key, sizeof(key));
    }
    if (err != ICMS_OK)
        return err_set(why, err, "cannot use the TLS key %.200s for enclosure %s: %.200s",
                       enclosure->psk, enclosure->name, reason.text);
    return ICMS_OK;
}

icms_err agent_secrets_load(const struct agent_enclosure_opts *enclosure, struct err_why *why,
                            struct secret **out_secret, struct secret **out_controller_secret)
{
    icms_err err = ICMS_OK;

    *out_secret = *out_controller_secret = NULL;
    if (enclosure->secret != NULL)
        err = dhchap_secret_read(enclosure->secret, why, out_secret);
    if (err == ICMS_OK && enclosure->controller_secret != NULL)
        err = dhchap_secret_read(enclosure->controller_secret, why, out_controller_secret);
    if (err == ICMS_OK && *out_secret != NULL && *out_controller_secret != NULL &&
        dhchap_key_same(dhchap_key(*out_secret), dhchap_key(*out_controller_secret)))
        err = err_set(why, ICMS_CONFIG,
                      "the secret and the controller_secret for enclosure %s are the same: make "
                      "another one with `icms key gen`",
                      enclosure->name);
    if (err != ICMS_OK) {
        secret_free(out_secret);
        secret_free(out_controller_secret);
    }
    return err;
}

icms_err agent_keys_check(const struct agent_opts *opts, struct err_why *why)
{
    for (uint32_t i = 0; i < opts->enclosure_count; i++) {
        struct crypt_tls *tls;
        icms_err err = agent_key_load(opts->host_nqn, &opts->enclosures[i], why, &tls);

        struct secret *secret = NULL, *controller_secret = NULL;

        crypt_tls_free(&tls);
        if (err == ICMS_OK)
            err = agent_secrets_load(&opts->enclosures[i], why, &secret, &controller_secret);
        secret_free(&secret);
        secret_free(&controller_secret);
        if (err != ICMS_OK)
            return err;
    }
    return ICMS_OK;
}

/* The files of one enclosure: all of them are right, or none is taken. */
static icms_err keys_read_again(struct agent *agent, const struct agent_opts *opts, uint32_t i,
                                struct err_why *why, bool *out_new)
{
    struct secret *secret = NULL, *controller_secret = NULL;
    struct crypt_tls *tls = NULL;
    icms_err err = agent_key_load(opts->host_nqn, &opts->enclosures[i], why, &tls);

    if (err == ICMS_OK)
        err = agent_secrets_load(&opts->enclosures[i], why, &secret, &controller_secret);
    if (err != ICMS_OK) {
        crypt_tls_free(&tls);
        return err;
    }
    *out_new = tls != NULL && crypt_tls_replace(agent->tls[i], &tls);
    if (secret != NULL)
        *out_new = secret_replace(agent->secrets[i], &secret) || *out_new;
    if (controller_secret != NULL)
        *out_new = secret_replace(agent->controller_secrets[i], &controller_secret) || *out_new;
    return ICMS_OK;
}

void agent_keys_read_again(struct agent *agent, const struct agent_opts *opts,
                           void (*said)(void *arg, const char *enclosure, const char *why),
                           void *arg)
{
    for (uint32_t i = 0; i < agent->enclosure_count; i++) {
        struct err_why why = {""};
        bool is_new = false;

        if (keys_read_again(agent, opts, i, &why, &is_new) != ICMS_OK)
            said(arg, opts->enclosures[i].name, why.text);
        else if (is_new)
            said(arg, opts->enclosures[i].name, NULL);
    }
}

void agent_keys_free(struct agent *agent)
{
    for (uint32_t i = 0; i < LIMIT_ENCLOSURES; i++) {
        crypt_tls_free(&agent->tls[i]);
        secret_free(&agent->secrets[i]);
        secret_free(&agent->controller_secrets[i]);
    }
}
