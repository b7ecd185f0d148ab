// Package namespace is what softrnic run and its program in the mount namespace share: the
// directories that get entries for the devices, and what the two say to each other.
package namespace

import "strings"

// Program is the file in the directory of the libraries that prepares the mount namespace. It is
// small, because it starts with each program.
const Program = "softrnic-namespace"

// The directories that get entries, below the root. Paths have no slash at the beginning.
const (
	Class    = "sys/class"
	Devices  = "sys/devices"
	Virtual  = Devices + "/virtual"
	Bus      = "sys/bus"
	PCIBus   = Bus + "/pci"
	ClassNet = Class + "/net"
	ClassPCI = Class + "/pci_bus"
	Module   = "sys/module"
	Dev      = "dev"
)

// Covered is the directory of the programs that scripts cover. Programs that list devices skip
// names with a dot.
const Covered = Dev + "/.softrnic"

// Merged are the directories in which entries of the kernel remain beside those of softrnic run.
// Elsewhere a directory of softrnic run replaces the kernel's.
var Merged = map[string]bool{
	Virtual: true, PCIBus: true, PCIBus + "/devices": true, PCIBus + "/drivers": true, ClassNet: true, ClassPCI: true,
	Covered: true, // by a softrnic run outside, perhaps of another user
}

// Merges reports whether entries of the kernel remain in a directory: one of Merged, or the place
// of a card in the machine's own PCI tree.
func Merges(dir string) bool { return Merged[dir] || strings.HasPrefix(dir, Devices+"/pci") }
