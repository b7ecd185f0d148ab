package ddp

// Segment cuts a message of size bytes into segments (RFC 5041 §5.2). The segment at offset off has
// n bytes of payload; last: it is the last one. No segment, with its header of headerLen bytes, is
// longer than mulpdu. A message of 0 bytes has one segment. mulpdu must be larger than headerLen,
// and off at most size.
func Segment(size, off uint32, headerLen, mulpdu int) (n int, last bool) {
	left := uint64(size - off)
	room := uint64(mulpdu - headerLen)
	if left <= room {
		return int(left), true
	}
	return int(room), false
}
