package nvme

// Feature is the identifier of a feature, in bits 7:0 of CDW10 of Get Features and Set Features
// (NVMe 1.4 §5.21.1). The value is in CDW11 of Set Features, and in the result.
type Feature uint8

const (
	FeatureArbitration     Feature = 0x01
	FeaturePower           Feature = 0x02
	FeatureTemperature     Feature = 0x04
	FeatureErrorRecovery   Feature = 0x05
	FeatureVolatileCache   Feature = 0x06
	FeatureQueues          Feature = 0x07 // I/O submission queues in bits 15:0, completion queues in bits 31:16, both 0's based
	FeatureWriteAtomicity  Feature = 0x0a
	FeatureAsyncEvents     Feature = 0x0b // the events that are enabled, such as AEAttribute
	FeatureKeepAlive       Feature = 0x0f // timeout, ms
	FeatureHostID          Feature = 0x81 // data of 16 bytes
	FeatureReservationMask Feature = 0x82
)

// Feature returns the feature of a Get Features or Set Features command.
func (c *Command) Feature() Feature { return Feature(c.CDW10) }

// FeatureSave in CDW10 of Set Features makes the value persistent.
const FeatureSave = 1 << 31

// DSMRange is a range of Dataset Management (NVMe 1.4 §6.7.1).
type DSMRange struct {
	Attributes uint32
	Blocks     uint32
	SLBA       uint64
}

// Dataset Management has 256 ranges at most, each of DSMRangeLen bytes.
const (
	DSMRangeLen  = 16
	MaxDSMRanges = 256
)

// ParseDSMRange parses a range.
func ParseDSMRange(b []byte) (r DSMRange, err error) {
	if len(b) < DSMRangeLen {
		return r, shorter("range", len(b), DSMRangeLen)
	}
	return DSMRange{le.Uint32(b), le.Uint32(b[4:]), le.Uint64(b[8:])}, nil
}

// Append appends the range, of DSMRangeLen bytes.
func (r *DSMRange) Append(b []byte) []byte {
	b = le.AppendUint32(b, r.Attributes)
	b = le.AppendUint32(b, r.Blocks)
	return le.AppendUint64(b, r.SLBA)
}
