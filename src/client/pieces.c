/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/pieces.c: values whose memory is several pieces (options.pieces): a layer each, a
 * descriptor each.
 *
 * Runs on the request's thread. Pieces of a device are one copy: the copier (src/device) copies
 * them to or from one pinned place, so all before and behind that is as for one piece. Pieces of
 * the host are filled, and read, piece by piece, with the checksum in the same pass.
 */
#include "base/bytes.h"
#include "base/check.h"
#include "base/crc.h"
#include "client/client_int.h"

static_assert(ICMS_PIECES_MAX <= DEVICE_PIECES, "a block is one copy");

icms_err client_pieces_check(const struct icms_request *request, size_t index)
{
    const struct icms_piece *pieces = client_pieces(request, index);
    uint64_t sum = 0;

    for (uint32_t i = 0; i < request->pieces; i++) {
        if (pieces[i].data == NULL || pieces[i].bytes == 0 ||
            pieces[i].bytes > request->blocks[index].bytes - sum)
            return ICMS_INVALID;
        sum += pieces[i].bytes;
    }
    return sum == request->blocks[index].bytes ? ICMS_OK : ICMS_INVALID;
}

icms_err client_pieces_host(const struct icms_request *request, size_t index)
{
    const struct icms_piece *pieces = client_pieces(request, index);

    for (uint32_t i = 0; i < request->pieces; i++) {
        const struct icms_memory *memory = client_memory_find(request->icms, pieces[i].data);

        if (memory != NULL && memory->device != NULL)
            return ICMS_INVALID;
        if (memory == NULL && device_is_foreign(pieces[i].data))
            return ICMS_NOT_REGISTERED;
    }
    return request->pieces != 0 && request->volume->keys != NULL ? ICMS_UNSUPPORTED : ICMS_OK;
}

icms_err client_pieces_device(const struct icms_request *request, size_t index,
                              const struct icms_memory *memory, struct device_piece *out_pieces)
{
    const struct icms_piece *pieces = client_pieces(request, index);

    for (uint32_t i = 0; i < request->pieces; i++) {
        struct icms_memory *range = client_memory_find(request->icms, pieces[i].data);
        uint64_t address = (uint64_t)(uintptr_t)pieces[i].data;

        if (range == NULL || range->device != memory->device ||
            pieces[i].bytes > range->bytes - (address - range->address))
            return ICMS_INVALID;
        out_pieces[i] = (struct device_piece){
            .address = address, .bytes = pieces[i].bytes, .id = range->id, .users = &range->users};
    }
    return ICMS_OK;
}

uint32_t client_pieces_gather(const struct icms_request *request, size_t index, uint8_t *to)
{
    const struct icms_piece *pieces = client_pieces(request, index);
    uint32_t crc = 0;

    for (uint32_t i = 0; i < request->pieces; to += pieces[i++].bytes)
        crc = crc32c_copy_steady(crc, to, pieces[i].data, pieces[i].bytes);
    return crc;
}

uint32_t client_pieces_scatter(const struct icms_request *request, size_t index, uint32_t crc,
                               const uint8_t *from, uint64_t at, uint64_t end)
{
    const struct icms_piece *pieces = client_pieces(request, index);
    uint64_t begin = 0; /* of the piece, in the value */

    for (uint32_t i = 0; i < request->pieces && at < end; begin += pieces[i++].bytes) {
        uint64_t piece_end = u64_min(begin + pieces[i].bytes, end);

        if (at >= piece_end)
            continue;
        crc = crc32c_copy(crc, (uint8_t *)pieces[i].data + (at - begin), from + at, piece_end - at);
        at = piece_end;
    }
    return crc;
}
