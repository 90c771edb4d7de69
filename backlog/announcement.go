package backlog

// Listening identifies one life of a listener connection.
type Listening struct {
	// Number counts connections on which LISTEN was executed, from 1. 0 means
	// not listening.
	Number uint64
	// Origin is that of the server listened to.
	Origin uint64
}

// AnnouncementKind says what an announcement tells.
type AnnouncementKind uint8

// Kinds of announcements.
const (
	// AnnounceFrame carries a whole durable frame.
	AnnounceFrame AnnouncementKind = iota + 1
	// AnnouncePointer says that a frame too large to carry is in the backlog.
	AnnouncePointer
	// AnnounceClosed says that the stream was closed after Frame.Position.
	AnnounceClosed
	// AnnounceEphemeral carries a whole ephemeral frame, which exists nowhere else.
	AnnounceEphemeral
)

// Announcement is what a committed transaction tells every replica about one
// stream. For durable frames it is an optimisation: the table is the truth, and
// a lost, late, doubled or reordered announcement must be harmless. An ephemeral
// frame is nowhere else, so that a lost one must be made known. The stream's row
// lock, held from before an announcement is made to the commit, makes the order
// of a stream's announcements, of either kind of frame, the order of commit.
type Announcement struct {
	Kind   AnnouncementKind
	Stream StreamName
	// OwnEpoch is the stream's own epoch; Frame.Position.Epoch is OwnEpoch XOR
	// Origin, but that of AnnounceEphemeral has the origin of the frame which it
	// follows.
	OwnEpoch uint64
	// Origin is that of the server that numbered the frame, or took in the ephemeral
	// one.
	Origin uint64
	// Frame is whole for AnnounceFrame and AnnounceEphemeral; otherwise only its
	// Position is set.
	Frame Frame
	// RowID is the id of the row that a pointer points to, for logs.
	RowID string
}
