package dropin

import "github.com/softrnic/softrnic/verbs"

// GUID returns the node GUID of dev as programs see it: in sysfs and by libibverbs. The device of a
// rail is two devices to programs, which may look for one by its GUID. So the iWARP device's differs
// from that of the RoCE device, [verbs.DeviceAttr].NodeGUID, in the last bit. The system image GUID
// is that of both. How the provider forms NodeGUID from the MAC address is described at guid in
// rdmatransport/provider.go.
func GUID(dev *verbs.Device, iwarp bool) verbs.GUID {
	g := dev.QueryDevice().NodeGUID
	if iwarp {
		g ^= 1
	}
	return g
}
