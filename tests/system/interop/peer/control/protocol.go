//go:build linux

// Package control runs shell commands on another machine over one byte stream, any number of them
// at once: [Serve] there, [Client] here. It trusts both ends.
package control

// message is one line of JSON. ID names a process; the client increments it.
type message struct {
	ID uint64 `json:"id"`

	// Client to server.
	Run   string `json:"run,omitempty"`   // start this command for sh -c
	In    []byte `json:"in,omitempty"`    // bytes for its standard input
	InEnd bool   `json:"inEnd,omitempty"` // end of its standard input
	Kill  bool   `json:"kill,omitempty"`  // SIGKILL for its process group

	// Server to client.
	Ready bool   `json:"ready,omitempty"` // the server serves; ID is 0
	Out   []byte `json:"out,omitempty"`   // bytes of its standard output and standard error
	Done  bool   `json:"done,omitempty"`  // it has ended, with Code
	Code  int    `json:"code,omitempty"`  // exit status; 128 + the signal's number after a signal
}
