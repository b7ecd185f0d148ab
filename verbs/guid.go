package verbs

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// GUID is the global unique identifier of a device, an EUI-64, as a number. Its most significant
// byte is the first of the identifier, and of the vendor's OUI. libibverbs has the same bytes in
// network byte order (ibv_get_device_guid). 0 is no GUID.
type GUID uint64

// String formats the GUID as ibv_devinfo and sysfs do: four groups of four hexadecimal digits.
func (g GUID) String() string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", uint16(g>>48), uint16(g>>32), uint16(g>>16), uint16(g))
}

// ParseGUID parses what String returns, and the 16 hexadecimal digits that ibv_devices prints, with
// or without 0x before them.
func ParseGUID(text string) (GUID, error) {
	if !guidForm().MatchString(text) {
		return 0, fmt.Errorf("%q is not a GUID: must be like 0002:c903:0012:3456 or 0002c90300123456", text)
	}
	g, err := strconv.ParseUint(strings.TrimPrefix(strings.ReplaceAll(text, ":", ""), "0x"), 16, 64)
	return GUID(g), err
}

var guidForm = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:(?:0x)?[0-9a-fA-F]{16}|[0-9a-fA-F]{4}(?::[0-9a-fA-F]{4}){3})$`)
})
