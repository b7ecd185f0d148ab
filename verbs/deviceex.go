package verbs

// DeviceAttrEx has further attributes of a device (ibv_device_attr_ex). It has no fields for
// features that no provider supports: tag matching, RSS, TSO, device memory.
type DeviceAttrEx struct {
	DeviceAttr
	ODP                     ODPCaps
	CompletionTimestampMask uint64 // the valid bits of Poller.CompletionTS
	HCACoreClock            uint64 // kHz; the frequency of Device.RawClock
	CQModeration            CQModeration
	PhysPortCntEx           int
}

// ODPCaps describes on-demand paging (ibv_odp_caps). Memory is never pinned, so every operation of
// every QP type works on any region. Implicit means a region of the whole address space, which is
// not possible with Go's memory.
type ODPCaps struct{ Support, Implicit bool }

// QueryDeviceEx returns the attributes of QueryDevice and those of the front end, such as its clock
// (ibv_query_device_ex).
func (d *Device) QueryDeviceEx() DeviceAttrEx {
	attr := d.QueryDevice()
	return DeviceAttrEx{
		DeviceAttr:              attr,
		ODP:                     ODPCaps{Support: true},
		CompletionTimestampMask: 1<<63 - 1,
		HCACoreClock:            1_000_000,
		CQModeration:            CQModeration{maxCQCount, maxCQPeriod},
		PhysPortCntEx:           int(attr.PhysPortCnt),
	}
}

// defaultPKey is the only partition key on Ethernet.
const defaultPKey = 0xffff

// QueryPKey returns an entry of a port's P_Key table (ibv_query_pkey).
func (d *Device) QueryPKey(port uint8, index int) (uint16, error) {
	if err := d.fault("query_pkey"); err != nil {
		return 0, err
	}
	a, err := d.queryPort(port)
	if err != nil {
		return 0, err
	}
	if err := checkRange("query P_Key", "index", index, 0, int(a.PKeyTblLen)-1); err != nil {
		return 0, err
	}
	return defaultPKey, nil
}
