"""A parcel service: tables joined by key and by foreign key, versions, suppressed windows."""
