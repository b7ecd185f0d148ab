// Package live keeps the counters of a device in files, as sysfs has them. Processes that use the
// device add to the files what they count, so that a file is the sum of all processes. Any process
// of the user may read them.
//
// The files of a device are in a directory of the user. It exists as long as a softrnic run has it
// open or, in a container, as long as the container. Linux only.
package live
