package ddp

// Segment says how a message is cut (RFC 5041 §5.2): the segment that carries on at offset off of a message of size
// bytes has n bytes of payload if no segment, its header of headerLen included, may be longer than mulpdu; last says that
// it ends the message. A message of 0 bytes has one segment. mulpdu > headerLen, off <= size.
func Segment(size, off uint32, headerLen, mulpdu int) (n int, last bool) {
	left := uint64(size - off)
	room := uint64(mulpdu - headerLen)
	if left <= room {
		return int(left), true
	}
	return int(room), false
}

// Segments is how many segments a message of size bytes has, and how many bytes all of them have with their headers.
func Segments(size uint32, headerLen, mulpdu int) (count int, total uint64) {
	room := uint64(mulpdu - headerLen)
	n := max((uint64(size)+room-1)/room, 1)
	return int(n), uint64(size) + n*uint64(headerLen)
}
