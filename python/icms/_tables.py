# SPDX-License-Identifier: Apache-2.0
"""Errors and miss reasons. Made by python/tables.py from include/icms/err.h: do not edit."""
import enum

from .errors import Error


class Status(enum.IntEnum):
    """What a call or a block came to. See icms-errors(7)."""

    OK = 0
    MISS = 1
    INVALID = 2
    KEY_SIZE = 3
    VALUE_SIZE = 4
    EXISTS = 5
    NO_VOLUME = 6
    QUOTA = 7
    NO_SPACE = 8
    DEADLINE = 9
    CANCELED = 10
    BUSY = 11
    LIMIT = 12
    NO_MEMORY = 13
    IO = 14
    CORRUPT = 15
    DRIVE_DOWN = 16
    PEER_DOWN = 17
    REFUSED = 18
    RESET = 19
    PROTOCOL = 20
    AUTH = 21
    NOT_FOUND = 22
    PERMISSION = 23
    FOREIGN = 24
    LOCKED = 25
    VERSION = 26
    CONFIG = 27
    UNSUPPORTED = 28
    FORKED = 29
    CLOSED = 30
    ADDRESS_IN_USE = 31
    NO_KEY = 32
    NOT_REGISTERED = 33
    DEVICE = 34


class Miss(enum.IntEnum):
    """Why a block is not available; NONE is no miss. See icms-errors(7)."""

    NONE = 0
    ABSENT = 1
    EVICTED = 2
    QUOTA = 3
    DEADLINE = 4
    DRIVE_DOWN = 5
    ENCLOSURE_DOWN = 6
    CHECKSUM = 7
    SHED = 8
    NO_VOLUME = 9
    COLLISION = 10
    NO_KEY = 11
    VERSION = 12


class MissError(Error):
    """The block is not available."""

    status = Status.MISS
    text = "the block is not available"
    retry = False


class InvalidError(Error):
    """Invalid argument."""

    status = Status.INVALID
    text = "invalid argument"
    retry = False


class KeySizeError(Error):
    """Key length is not 1 to 16 bytes."""

    status = Status.KEY_SIZE
    text = "key length is not 1 to 16 bytes"
    retry = False


class ValueSizeError(Error):
    """Value is empty or larger than the volume allows."""

    status = Status.VALUE_SIZE
    text = "value is empty or larger than the volume allows"
    retry = False


class ExistsError(Error):
    """The key exists already."""

    status = Status.EXISTS
    text = "the key exists already"
    retry = False


class NoVolumeError(Error):
    """No such volume."""

    status = Status.NO_VOLUME
    text = "no such volume"
    retry = False


class QuotaError(Error):
    """Value is larger than the volume's quota."""

    status = Status.QUOTA
    text = "value is larger than the volume's quota"
    retry = False


class NoSpaceError(Error):
    """No space can be made."""

    status = Status.NO_SPACE
    text = "no space can be made"
    retry = True


class DeadlineError(Error):
    """The deadline passed."""

    status = Status.DEADLINE
    text = "the deadline passed"
    retry = True


class CanceledError(Error):
    """Canceled."""

    status = Status.CANCELED
    text = "canceled"
    retry = False


class BusyError(Error):
    """The other side is busy."""

    status = Status.BUSY
    text = "the other side is busy"
    retry = True


class LimitError(Error):
    """A configured limit is used up."""

    status = Status.LIMIT
    text = "a configured limit is used up"
    retry = True


class NoMemoryError(Error):
    """Out of memory."""

    status = Status.NO_MEMORY
    text = "out of memory"
    retry = True


class IoError(Error):
    """The device reported an error."""

    status = Status.IO
    text = "the device reported an error"
    retry = False


class CorruptError(Error):
    """Stored bytes do not match their checksum."""

    status = Status.CORRUPT
    text = "stored bytes do not match their checksum"
    retry = False


class DriveDownError(Error):
    """The drive is out of service."""

    status = Status.DRIVE_DOWN
    text = "the drive is out of service"
    retry = False


class PeerDownError(Error):
    """Unavailable (no response)."""

    status = Status.PEER_DOWN
    text = "unavailable (no response)"
    retry = True


class RefusedError(Error):
    """Connection refused."""

    status = Status.REFUSED
    text = "connection refused"
    retry = True


class ResetError(Error):
    """Connection lost."""

    status = Status.RESET
    text = "connection lost"
    retry = True


class ProtocolError(Error):
    """The other side broke the protocol."""

    status = Status.PROTOCOL
    text = "the other side broke the protocol"
    retry = False


class AuthError(Error):
    """Not authorized."""

    status = Status.AUTH
    text = "not authorized"
    retry = False


class NotFoundError(Error):
    """No such file or address."""

    status = Status.NOT_FOUND
    text = "no such file or address"
    retry = False


class PermissionError(Error):
    """Permission denied."""

    status = Status.PERMISSION
    text = "permission denied"
    retry = False


class ForeignError(Error):
    """Holds data of another program or format."""

    status = Status.FOREIGN
    text = "holds data of another program or format"
    retry = False


class LockedError(Error):
    """In use by another process."""

    status = Status.LOCKED
    text = "in use by another process"
    retry = True


class VersionError(Error):
    """Format or protocol version is not supported."""

    status = Status.VERSION
    text = "format or protocol version is not supported"
    retry = False


class ConfigError(Error):
    """Configuration is wrong."""

    status = Status.CONFIG
    text = "configuration is wrong"
    retry = False


class UnsupportedError(Error):
    """Not supported here."""

    status = Status.UNSUPPORTED
    text = "not supported here"
    retry = False


class ForkedError(Error):
    """Handle was opened by another process."""

    status = Status.FORKED
    text = "handle was opened by another process"
    retry = False


class ClosedError(Error):
    """Handle is closed."""

    status = Status.CLOSED
    text = "handle is closed"
    retry = False


class AddressInUseError(Error):
    """Address is in use."""

    status = Status.ADDRESS_IN_USE
    text = "address is in use"
    retry = True


class NoKeyError(Error):
    """The volume is encrypted, and there is no key."""

    status = Status.NO_KEY
    text = "the volume is encrypted, and there is no key"
    retry = False


class NotRegisteredError(Error):
    """This device memory is not registered."""

    status = Status.NOT_REGISTERED
    text = "this device memory is not registered"
    retry = False


class DeviceError(Error):
    """The device's driver reported an error."""

    status = Status.DEVICE
    text = "the device's driver reported an error"
    retry = False


#: The exception of each status but OK.
CLASSES: dict[int, type[Error]] = {
    1: MissError,
    2: InvalidError,
    3: KeySizeError,
    4: ValueSizeError,
    5: ExistsError,
    6: NoVolumeError,
    7: QuotaError,
    8: NoSpaceError,
    9: DeadlineError,
    10: CanceledError,
    11: BusyError,
    12: LimitError,
    13: NoMemoryError,
    14: IoError,
    15: CorruptError,
    16: DriveDownError,
    17: PeerDownError,
    18: RefusedError,
    19: ResetError,
    20: ProtocolError,
    21: AuthError,
    22: NotFoundError,
    23: PermissionError,
    24: ForeignError,
    25: LockedError,
    26: VersionError,
    27: ConfigError,
    28: UnsupportedError,
    29: ForkedError,
    30: ClosedError,
    31: AddressInUseError,
    32: NoKeyError,
    33: NotRegisteredError,
    34: DeviceError,
}
