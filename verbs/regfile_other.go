//go:build !unix

package verbs

// regFile is not supported on this system.
func (pd *PD) regFile(*MRInitAttr) (*MR, error) {
	return nil, Errorf(ErrNotSupported, opRegister, "File is set, but this system has no mmap")
}

func syncMapping(b []byte) error { return ErrNotSupported }
