// Package captures reads captures in tests.
//
// This package is for SoftRNIC's own packages, and its API may change in any version.
package captures

import (
	"compress/gzip"
	"io"
	"iter"
	"os"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/pcapgo"
)

// Packets yields the packets of a compressed pcap file.
func Packets(t testing.TB, file string) iter.Seq[gopacket.Packet] {
	return func(yield func(gopacket.Packet) bool) {
		t.Helper()
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		r, err := pcapgo.NewReader(z)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for {
			data, _, err := r.ReadPacketData()
			if err == io.EOF {
				return
			}
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if !yield(gopacket.NewPacket(data, r.LinkType(), gopacket.Default)) {
				return
			}
		}
	}
}

// Frames yields the packets of a pcapng file, numbered from 1.
func Frames(t testing.TB, file io.Reader) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		t.Helper()
		r, err := pcapgo.NewNgReader(file, pcapgo.DefaultNgReaderOptions)
		if err != nil {
			t.Fatal(err)
		}
		for n := 1; ; n++ {
			data, _, err := r.ReadPacketData()
			if err == io.EOF {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !yield(n, data) {
				return
			}
		}
	}
}
