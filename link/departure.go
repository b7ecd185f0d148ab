package link

// Departures is a link whose medium tells when another host has left it for good, however its process ended. A wrapper does not
// tell: it may still have frames of that host.
type Departures interface {
	// WatchDepartures sets the function to call with the Ethernet address of a host that has left, once what it sent before was
	// received. Calls do not overlap. Once WatchDepartures has returned, the function that was set before is not called any more.
	// Nil ends the calls.
	WatchDepartures(f func(mac [6]byte))
}
