package dropin

import (
	"errors"
	"fmt"
	"slices"

	"github.com/softrnic/softrnic/verbs"
)

// GUID returns the node GUID of dev as programs see it: in sysfs and by libibverbs. The device of a
// rail is two devices to programs, which may look for one by its GUID. So the iWARP device's
// differs from that of the RoCE device, [verbs.DeviceAttr].NodeGUID, in the last bit. Both have the
// same system image GUID. NodeGUID is Settings.GUID; otherwise guid in rdmatransport/provider.go
// forms it from the MAC address.
func GUID(dev *verbs.Device, iwarp bool) verbs.GUID {
	g := dev.QueryDevice().NodeGUID
	if iwarp {
		g ^= 1
	}
	return g
}

// guids returns the GUID of each rail, or 0 for all: it is not given.
func (s *Settings) guids() (list []verbs.GUID, err error) {
	if s.GUID == "" {
		return []verbs.GUID{0}, nil
	}
	for _, text := range s.GUID.parts() {
		g, err := verbs.ParseGUID(text)
		switch {
		case err != nil:
		case g == 0:
			err = errors.New("0 is no GUID")
		case slices.ContainsFunc(list, func(other verbs.GUID) bool { return g|1 == other|1 }):
			err = fmt.Errorf("%v is a device of two rails: they must differ in more than the last bit, which the iWARP device inverts", g)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.source(&s.GUID), err)
		}
		list = append(list, g)
	}
	return list, nil
}
